-- Clauses that would be answered wrongly or passed over.
SELECT page FROM clicks INTERSECT ALL SELECT channel FROM bid;
SELECT page FROM clicks EXCEPT ALL SELECT channel FROM bid;
SELECT page FROM clicks TABLESAMPLE BERNOULLI (10);
SELECT TOP 3 page FROM clicks;
SELECT page INTO x FROM clicks;
SELECT page FROM clicks ORDER BY page FETCH FIRST 3 ROWS WITH TIES;
SELECT page FROM clicks SORT BY page;
SELECT * FROM clicks PIVOT (COUNT(page) FOR page IN ('a', 'b'));
-- Clauses that streams do not know yet.
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n;
SELECT page, SUM(user_id) OVER (PARTITION BY page) AS s FROM clicks;
SELECT DISTINCT ON (page) page, user_id FROM clicks;
SELECT page, MEDIAN(user_id) FROM clicks GROUP BY page;
SELECT page, n FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY CUBE (page)) c;
SELECT p.page FROM clicks p, LATERAL (SELECT COUNT(*) AS n FROM bid b WHERE b.auction = p.user_id) c;
-- Values that are others the next time.
SELECT page, n, RAND() FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY page);
SELECT page, n, NOW() AS at FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY page);
SELECT k, SUM(v * RAND()) FROM changes GROUP BY k;
SELECT page, MAX(r) FROM (SELECT page, RAND() AS r FROM clicks) GROUP BY page;
SELECT c.page FROM clicks c LEFT JOIN bid b ON c.user_id = b.auction AND b.price + c.user_id > RAND() * 100;
INSERT INTO totals SELECT auction, MEDIAN(price) FROM bid GROUP BY auction;
