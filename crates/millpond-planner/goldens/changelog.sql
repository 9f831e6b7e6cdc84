-- Kinds and keys per edge.
EXPLAIN CHANGELOG_MODE SELECT page, COUNT(*) AS n FROM clicks GROUP BY page;
EXPLAIN CHANGELOG_MODE SELECT n, COUNT(*) AS m FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY page) GROUP BY n;
EXPLAIN CHANGELOG_MODE SELECT page FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY page) WHERE n > 1;
EXPLAIN CHANGELOG_MODE SELECT DISTINCT page FROM clicks;
EXPLAIN CHANGELOG_MODE SELECT c.page, k.v FROM clicks c LEFT JOIN changes k ON c.user_id = k.k;
EXPLAIN CHANGELOG_MODE SELECT k, v FROM changes UNION ALL SELECT user_id, raw FROM clicks;
EXPLAIN CHANGELOG_MODE INSERT INTO totals SELECT auction, COUNT(*) FROM bid GROUP BY auction;
-- Old images are said only where something needs them: not for a sink with the key of the rows …
EXPLAIN CHANGELOG_MODE INSERT INTO totals SELECT n, auction FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction);
EXPLAIN CHANGELOG_MODE INSERT INTO totals SELECT auction, COUNT(*) FROM bid GROUP BY auction HAVING COUNT(*) > 1;
EXPLAIN CHANGELOG_MODE INSERT INTO totals SELECT auction, MAX(n) FROM (SELECT auction, bidder, COUNT(*) AS n FROM bid GROUP BY auction, bidder) GROUP BY auction;
CREATE TABLE nowhere (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
EXPLAIN CHANGELOG_MODE INSERT INTO nowhere SELECT auction, COUNT(*) FROM bid GROUP BY auction;
EXPLAIN CHANGELOG_MODE INSERT INTO nowhere SELECT bidder, MAX(price) FROM bid GROUP BY auction, bidder;
-- … and not where one of two consumers needs them.
EXPLAIN CHANGELOG_MODE EXECUTE STATEMENT SET BEGIN INSERT INTO nowhere SELECT auction, COUNT(*) FROM bid GROUP BY auction; INSERT INTO printed SELECT auction, COUNT(*) FROM bid GROUP BY auction; END;
-- State tables.
EXPLAIN STATE SELECT c.page, COUNT(DISTINCT b.channel) AS n FROM clicks c JOIN bid b ON c.user_id = b.auction GROUP BY c.page;
-- Rows that are spread as wanted are not spread again.
SELECT page, n, m FROM (SELECT page, COUNT(*) AS n FROM clicks GROUP BY page) a JOIN (SELECT page AS p, SUM(raw) AS m FROM clicks WHERE raw > 0 GROUP BY page) b ON a.page = b.p;
SELECT DISTINCT page FROM (SELECT page, user_id, COUNT(*) AS n FROM clicks GROUP BY page, user_id);
SELECT auction, COUNT(*) FROM (SELECT DISTINCT auction FROM bid) GROUP BY auction;
-- A sub-plan of several queries is computed once.
CREATE VIEW counts AS SELECT page, COUNT(*) AS n FROM clicks GROUP BY page;
SELECT a.page, b.page AS other FROM counts a JOIN counts b ON a.n = b.n;
WITH w AS (SELECT user_id, SUM(raw) AS s FROM clicks GROUP BY user_id) SELECT user_id, s FROM w WHERE s > (SELECT AVG(s) FROM w);
SELECT a.price FROM bid a JOIN bid b ON a.auction = b.bidder;
-- A time to live by hint: of each side, of a key, of a group.
EXPLAIN STATE SELECT /*+ STATE_TTL('c' = '1 d', 'b' = '2 h') */ c.page, b.price FROM clicks c JOIN bid b ON c.user_id = b.auction;
EXPLAIN STATE SELECT /*+ STATE_TTL('c' = '1 d') */ c.page, b.price FROM clicks c JOIN bid b ON c.user_id = b.auction;
EXPLAIN STATE SELECT /*+ STATE_TTL('c' = '1 d', 'b' = '2 h') */ c.page, b.price FROM clicks c LEFT JOIN bid b ON c.user_id = b.auction;
EXPLAIN STATE SELECT /*+ STATE_TTL('c' = '1 d', 'b' = '2 h') */ c.page, b.price FROM clicks c LEFT JOIN bid b ON c.user_id < b.auction;
EXPLAIN STATE SELECT /*+ STATE_TTL('clicks' = '1 d') */ page, COUNT(*) FROM clicks WHERE raw > 0 GROUP BY page;
