-- Names.
SELECT pryce FROM bid;
SELECT b.pryce FROM bid b;
SELECT price FROM bit;
SELECT smu(price) FROM bid;
SELECT price FROM printed;
SELECT a.price FROM bid a JOIN bid b ON price = b.price;
-- Types.
SELECT SUM(channel) FROM bid;
SELECT price + channel FROM bid WHERE price;
-- Windows.
SELECT window_start FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '1' MINUTE));
SELECT window_start FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(page), INTERVAL '1' MINUTE));
SELECT window_start FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen)));
SELECT window_start FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' MONTH));
SELECT window_start FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(seen), INTERVAL '0' SECOND));
SELECT window_start FROM TABLE(TUMBEL(TABLE clicks, DESCRIPTOR(seen), INTERVAL '1' MINUTE));
-- Not yet.
SELECT page, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY seen) FROM clicks;
SELECT page FROM clicks JOIN bid FOR SYSTEM_TIME AS OF clicks.seen AS b ON clicks.user_id = b.auction;
SELECT PERCENTILE(v, 2) FROM changes;
INSERT INTO log SELECT k, v FROM latest;
SELECT c.page, u.n FROM clicks c JOIN (SELECT user_id, COUNT(*) AS n FROM clicks GROUP BY user_id) u ON c.user_id = u.user_id;
SELECT 1;
SELECT LISTAGG(page, channel) FROM clicks, bid WHERE user_id = auction;
-- Order without an end.
SELECT page FROM clicks ORDER BY page;
SELECT page FROM clicks LIMIT 3;
-- Sinks.
INSERT INTO log SELECT auction, COUNT(*) FROM bid GROUP BY auction;
INSERT INTO log SELECT auction FROM bid;
INSERT INTO log SELECT auction, channel FROM bid;
INSERT INTO log (k, m) SELECT auction, price FROM bid;
INSERT INTO bid SELECT * FROM bid;
INSERT INTO nowhere SELECT * FROM bid;
INSERT INTO log SELECT auction, price FROM bid ON CONFLICT DO NOTHING;
-- Definitions.
CREATE TABLE x (a INT, a INT) WITH ('connector' = 'stream');
CREATE TABLE x (ts VARCHAR, WATERMARK FOR ts AS ts) WITH ('connector' = 'stream');
CREATE TABLE x (ts TIMESTAMP(3), WATERMARK FOR td AS ts) WITH ('connector' = 'stream');
CREATE TABLE x (ts TIMESTAMP(3), WATERMARK FOR ts AS 5) WITH ('connector' = 'stream');
CREATE TABLE x (ts TIMESTAMP(3), WATERMARK FOR ts AS tz - INTERVAL '1' SECOND) WITH ('connector' = 'stream');
CREATE TABLE x (a INT, PRIMARY KEY (b) NOT ENFORCED) WITH ('connector' = 'stream');
CREATE TABLE x (a JSON) WITH ('connector' = 'stream');
CREATE TABLE x (a INT, b AS c + 1) WITH ('connector' = 'stream');
-- Rankings without a bound, or an impossible one.
SELECT * FROM (SELECT page, RANK() OVER (PARTITION BY user_id ORDER BY seen) AS r FROM clicks) WHERE r > 3;
SELECT * FROM (SELECT page, ROW_NUMBER() OVER (ORDER BY seen) AS rn FROM clicks) WHERE rn < 1;
SELECT page FROM clicks QUALIFY SUM(user_id) OVER (PARTITION BY page) > 3;
-- The current time, judged only once.
SELECT page FROM clicks WHERE user_id = 1 OR seen > NOW() - INTERVAL '1' HOUR;
SELECT page FROM clicks ORDER BY page FETCH FIRST 3 ROWS WITH TIES;
