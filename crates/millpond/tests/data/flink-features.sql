-- Features of Flink SQL over the Nexmark events; `late` holds the disordered bids, its watermark 0.2 s behind.

-- e01: TUMBLE with every aggregate
SELECT window_start, window_end, COUNT(*) AS n, SUM(price) AS s, MIN(price) AS mn, MAX(price) AS mx, AVG(price) AS av, COUNT(DISTINCT bidder) AS d FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND)) GROUP BY window_start, window_end;

-- e03: CUMULATE
SELECT window_start, window_end, COUNT(*) AS n, MAX(price) AS mx FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '5' SECOND, INTERVAL '20' SECOND)) GROUP BY window_start, window_end;

-- e05: TUMBLE with an offset
SELECT window_start, window_end, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND, INTERVAL '3' SECOND)) GROUP BY window_start, window_end;

-- e07: Top-N of each window
SELECT window_start, window_end, auction, n, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, auction ASC) AS rn FROM (SELECT window_start, window_end, auction, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, auction)) WHERE rn <= 3;

-- e09: a join of windows
SELECT A.window_start, A.id, B.price FROM (SELECT * FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND)) WHERE category = 10) A JOIN (SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND)) WHERE price > 10000000) B ON A.id = B.auction AND A.window_start = B.window_start AND A.window_end = B.window_end;

-- e11: windows of windows
SELECT window_start, window_end, SUM(n) AS n, MAX(n) AS mx FROM TABLE(TUMBLE((SELECT auction, COUNT(*) AS n, window_time AS rt FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '5' SECOND)) GROUP BY auction, window_start, window_end, window_time), DESCRIPTOR(rt), INTERVAL '20' SECOND)) GROUP BY window_start, window_end;

-- e13: OVER a range of time
SELECT auction, `dateTime`, COUNT(*) OVER (PARTITION BY auction ORDER BY `dateTime` RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW) AS n, MAX(price) OVER (PARTITION BY auction ORDER BY `dateTime` RANGE BETWEEN INTERVAL '1' SECOND PRECEDING AND CURRENT ROW) AS mx FROM bid WHERE MOD(auction, 7) = 0;

-- e15: an interval join
SELECT A.id, B.bidder, B.price, A.`dateTime` AS a_time, B.`dateTime` AS b_time FROM auction A JOIN bid B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.`dateTime` + INTERVAL '0.5' SECOND WHERE A.category = 11;

-- e17: a temporal join
CREATE VIEW last_auction AS SELECT id, seller, category, `dateTime` FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY `dateTime` DESC) AS rn FROM auction) WHERE rn = 1;
SELECT B.auction, B.price, B.`dateTime`, V.id, V.category FROM bid B JOIN last_auction FOR SYSTEM_TIME AS OF B.`dateTime` AS V ON B.bidder - 1000 = V.seller WHERE MOD(B.auction, 5) = 0;

-- e19: ROLLUP
SELECT category, CASE WHEN initialBid < 10000 THEN 'low' ELSE 'high' END AS b, COUNT(*) AS n, SUM(reserve) AS r, GROUPING(category) AS g FROM auction GROUP BY ROLLUP(category, CASE WHEN initialBid < 10000 THEN 'low' ELSE 'high' END);

-- e21: FULL OUTER JOIN
SELECT P.id AS pid, A.id AS aid FROM (SELECT * FROM person WHERE state = 'OR') P FULL OUTER JOIN (SELECT * FROM auction WHERE category = 10) A ON P.id = A.seller;

-- e23: IN with a subquery
SELECT id, name FROM person WHERE id IN (SELECT seller FROM auction WHERE category = 13);

-- e25: Top-N with its ranks
SELECT auction, price, bidder, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, `dateTime` ASC) AS rn FROM bid) WHERE rn BETWEEN 2 AND 3;

-- e27: MATCH_RECOGNIZE
SELECT * FROM (SELECT auction, price, `dateTime` FROM bid WHERE MOD(auction, 3) = 0) MATCH_RECOGNIZE (PARTITION BY auction ORDER BY `dateTime` MEASURES A.price AS p1, B.price AS p2, C.price AS p3, C.`dateTime` AS ts ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A B C) DEFINE B AS B.price > A.price * 2, C AS C.price > B.price * 2);

-- e29: scalar functions
SELECT id, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd HH:mm:ss') AS f, EXTRACT(SECOND FROM `dateTime`) AS sec, FLOOR(`dateTime` TO MINUTE) AS fm, TIMESTAMPDIFF(SECOND, `dateTime`, expires) AS len, MOD(initialBid, 7) AS m, initialBid / 7 AS q, -initialBid / 7 AS nq, CAST(initialBid AS DECIMAL(20,4)) / 7 AS dq, CAST(initialBid AS DOUBLE) / 7 AS fq, UPPER(itemName) AS u, CHAR_LENGTH(description) AS cl, SUBSTRING(itemName FROM 2 FOR 3) AS ss, POSITION('a' IN itemName) AS po, TRIM(itemName) AS tr, itemName || '-' || CAST(id AS VARCHAR) AS cc, NULLIF(category, 10) AS nf, COALESCE(NULLIF(category, 10), -1) AS co FROM auction WHERE id < 1200;

-- e31: windows over late rows
SELECT window_start, window_end, COUNT(*) AS n, SUM(price) AS s FROM TABLE(TUMBLE(TABLE late, DESCRIPTOR(`dateTime`), INTERVAL '0.7' SECOND)) GROUP BY window_start, window_end;

-- e33: OVER late rows
SELECT auction, `dateTime`, COUNT(*) OVER (PARTITION BY auction ORDER BY `dateTime`) AS n FROM late WHERE MOD(auction, 7) = 0;
