-- Computed columns are computed by the source; the watermark's column is read though no query names it.
SELECT page, at FROM clicks;
-- COUNT(*) reads no column.
SELECT COUNT(*) FROM clicks;
-- A filter above an aggregation stays there.
SELECT user_id, SUM(raw) AS s FROM clicks GROUP BY user_id HAVING SUM(raw) > 10;
-- Keys and arguments that are expressions are columns before the exchange.
SELECT user_id % 7 AS k, COUNT(DISTINCT page), SUM(raw) FILTER (WHERE page <> '') FROM clicks GROUP BY user_id % 7;
-- DISTINCT of appended rows only appends.
SELECT DISTINCT page FROM clicks;
-- UNION ALL keeps the watermark.
SELECT seen FROM clicks UNION ALL SELECT seen FROM clicks WHERE user_id > 3;
-- A window function by itself.
SELECT user_id, window_start, window_end FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' MINUTE));
-- Named arguments, a subquery, a filter below the aggregation.
SELECT window_end, user_id, COUNT(*) FROM TABLE(HOP(DATA => TABLE clicks, TIMECOL => DESCRIPTOR(seen),
  SLIDE => INTERVAL '5' SECOND, SIZE => INTERVAL '1' MINUTE)) WHERE page = 'x' GROUP BY window_end, user_id;
-- The window alone, without its end.
SELECT window_start, MAX(raw) FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' HOUR)) GROUP BY window_start;
-- A window over windows.
SELECT window_start, SUM(n) FROM TABLE(TUMBLE((
  SELECT window_time AS t, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' MINUTE))
  GROUP BY window_start, window_end, window_time), DESCRIPTOR(t), INTERVAL '1' HOUR)) GROUP BY window_start, window_end;
-- An interval join is bounded.
SELECT a.page, b.page FROM clicks a JOIN clicks b ON a.user_id = b.user_id
  WHERE b.seen BETWEEN a.seen AND a.seen + INTERVAL '10' SECOND;
-- Keys of different types are columns before the exchange.
SELECT c.page, b.price FROM clicks c JOIN bid b ON c.user_id = b.auction;
-- A join without a key runs in one task.
SELECT c.page, b.price FROM clicks c CROSS JOIN bid b;
-- A changelog source: sums follow, and its key is known.
SELECT k, v FROM changes;
SELECT SUM(v) FROM changes;
-- Views.
CREATE VIEW per_user (u, n) AS SELECT user_id, COUNT(*) FROM clicks GROUP BY user_id;
SELECT n, COUNT(*) FROM per_user GROUP BY n;
DESCRIBE per_user;
DESCRIBE clicks;
-- The final order is applied to the folded result.
SELECT auction FROM bid ORDER BY price DESC, auction LIMIT 3 OFFSET 1;
SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction ORDER BY n;
-- Sinks.
INSERT INTO log SELECT auction, price FROM bid;
INSERT INTO printed (n) SELECT COUNT(*) FROM bid;
INSERT INTO totals SELECT auction, COUNT(*) FROM bid GROUP BY auction;
INSERT INTO log SELECT user_id, raw FROM clicks;
-- One source and one aggregation for two sinks.
EXECUTE STATEMENT SET BEGIN
  INSERT INTO printed SELECT auction, COUNT(*) FROM bid GROUP BY auction;
  INSERT INTO printed SELECT n, COUNT(*) FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction) GROUP BY n;
  INSERT INTO log SELECT auction, price FROM bid WHERE price > 5;
END;
EXPLAIN STATE SELECT user_id, COUNT(*) FROM clicks GROUP BY user_id;
EXPLAIN CHANGELOG_MODE SELECT user_id, COUNT(*) FROM clicks GROUP BY user_id;
EXPLAIN LOGICAL SELECT user_id, COUNT(*) FROM clicks GROUP BY user_id;
-- Rows that replace each other by key.
SELECT * FROM latest;
SELECT v, COUNT(*) FROM latest WHERE v > 1 GROUP BY v;
-- Sinks with a key that is the query's, another, or unknown.
INSERT INTO totals SELECT auction, COUNT(*) FROM bid GROUP BY auction;
INSERT INTO totals SELECT COUNT(*), auction FROM bid GROUP BY auction;
INSERT INTO totals SELECT k, v FROM latest;
INSERT INTO totals SELECT auction, price FROM bid;
INSERT INTO totals SELECT auction, price FROM bid ON CONFLICT DO NOTHING;
-- Rankings: with and without the rank, of rows that come, that change, and within windows.
SELECT page, rn FROM (SELECT page, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY raw DESC) AS rn FROM clicks) WHERE rn <= 3;
SELECT page FROM (SELECT page, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY raw DESC, page) AS rn FROM clicks) WHERE rn = 1 AND page <> '';
SELECT k FROM changes QUALIFY RANK() OVER (ORDER BY v + 1 DESC) <= 5;
SELECT window_end, page FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY raw) AS rn
  FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' MINUTE))
) WHERE rn <= 2;
INSERT INTO totals SELECT user_id, raw FROM clicks QUALIFY ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY raw) = 1;
SELECT page FROM clicks ORDER BY raw DESC LIMIT 3 OFFSET 1;
SELECT COUNT(*) FROM (SELECT page FROM clicks LIMIT 10);
-- Rows that come and go as time passes; windows over processing time; the first row of a key.
SELECT page FROM clicks WHERE seen > NOW() - INTERVAL '1' HOUR AND user_id > 3;
SELECT page, COUNT(*) FROM clicks WHERE seen BETWEEN CURRENT_TIMESTAMP - INTERVAL '1' DAY AND CURRENT_TIMESTAMP GROUP BY page;
SELECT page FROM clicks WHERE seen <= NOW();
SELECT window_end, COUNT(*) FROM TABLE(TUMBLE((SELECT page, PROCTIME() AS pt FROM clicks), DESCRIPTOR(pt), INTERVAL '10' SECOND)) GROUP BY window_start, window_end;
SELECT page, seen FROM (SELECT page, seen, ROW_NUMBER() OVER (PARTITION BY page ORDER BY PROCTIME()) AS rn FROM clicks) WHERE rn = 1;
SELECT page, seen FROM (SELECT page, seen, ROW_NUMBER() OVER (PARTITION BY page ORDER BY seen DESC) AS rn FROM clicks) WHERE rn = 1;
-- Aggregates.
SELECT MIN(v), MAX(v), COUNT(DISTINCT v), COUNT(DISTINCT v) FILTER (WHERE v > 1) FROM changes;
SELECT page, COUNT(*), LISTAGG(DISTINCT page, '-'), GROUPING(page) FROM clicks GROUP BY ROLLUP (page);
SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY user_id DESC), ARRAY_AGG(page ORDER BY user_id DESC) IGNORE NULLS, STDDEV(user_id) FROM clicks;
-- SESSION row by row: of appended rows when a session is over, of changing ones as they are.
SELECT user_id, page, window_end FROM TABLE(SESSION(TABLE clicks PARTITION BY user_id, DESCRIPTOR(seen), INTERVAL '1' MINUTE));
CREATE TABLE moves (id BIGINT, who BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'changes');
SELECT who, window_start, COUNT(*) FROM TABLE(SESSION(TABLE moves PARTITION BY who, DESCRIPTOR(at), INTERVAL '1' MINUTE)) GROUP BY who, window_start, window_end;
