-- Kinds of joins.
SELECT a.page, b.page FROM clicks a LEFT JOIN clicks b ON a.user_id = b.user_id;
SELECT a.page, b.price FROM clicks a FULL JOIN bid b ON a.user_id = b.auction AND a.raw > b.price;
SELECT page FROM clicks WHERE user_id IN (SELECT auction FROM bid);
SELECT page FROM clicks c WHERE NOT EXISTS (SELECT 1 FROM bid b WHERE b.auction = c.user_id);
SELECT page FROM clicks c WHERE user_id > 5 OR EXISTS (SELECT 1 FROM bid b WHERE b.auction = c.user_id);
SELECT a.page, b.price FROM clicks a CROSS JOIN bid b;
SELECT a.page FROM clicks a LEFT JOIN bid b ON a.user_id < b.auction;
-- Bounded by time: the result is appended to.
SELECT c.page, b.price FROM clicks c LEFT JOIN bid b ON c.user_id = b.auction AND b.`dateTime` BETWEEN c.seen AND c.seen + INTERVAL '10' SECOND;
SELECT c.page, b.price FROM clicks c LEFT JOIN bid b ON c.user_id = b.auction AND b.`dateTime` > c.seen;
-- What identifies a row.
SELECT a.auction, a.n, b.m FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction) a LEFT JOIN (SELECT bidder, COUNT(*) AS m FROM bid GROUP BY bidder) b ON a.auction = b.bidder;
SELECT a.auction, b.bidder, b.m FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction) a FULL JOIN (SELECT bidder, COUNT(*) AS m FROM bid GROUP BY bidder) b ON a.auction = b.bidder;
INSERT INTO log SELECT c.user_id, b.price FROM clicks c LEFT JOIN bid b ON c.user_id = b.auction;
