SELECT q.category, AVG(q.final) AS average
FROM (
  SELECT MAX(b.price) AS final, a.category
  FROM auction AS a JOIN bid AS b ON a.id = b.auction
  WHERE b.`dateTime` BETWEEN a.`dateTime` AND a.expires
  GROUP BY a.id, a.category
) AS q
GROUP BY q.category
