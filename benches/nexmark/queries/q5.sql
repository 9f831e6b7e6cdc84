SELECT ab.auction, ab.num
FROM (
  SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end
) AS ab
JOIN (
  SELECT MAX(cb.num) AS maxn, cb.starttime, cb.endtime
  FROM (
    SELECT COUNT(*) AS num, window_start AS starttime, window_end AS endtime
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
  ) AS cb
  GROUP BY cb.starttime, cb.endtime
) AS mb
ON ab.starttime = mb.starttime AND ab.endtime = mb.endtime AND ab.num >= mb.maxn
