-- A job over generated bids: one bid in fifty as it is, and counts per auction and 10 s window,
-- both written exactly once. Run again on the same data directory it goes on where it was.
SET 'checkpoint.interval' = '500 ms';
SET 'job.name' = 'bids';

CREATE TABLE bid (
  auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3),
  WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH ('connector' = 'nexmark', 'event' = 'bid', 'events' = '$EVENTS', 'rate' = '10000', 'ooo' = '1000');

CREATE TABLE chosen (auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3))
WITH ('connector' = 'filesystem', 'path' = '$OUT/chosen', 'format' = 'csv');

CREATE TABLE counts (auction BIGINT, window_start TIMESTAMP(3), bids BIGINT, total BIGINT, highest BIGINT)
WITH ('connector' = 'filesystem', 'path' = '$OUT/counts', 'format' = 'json');

EXECUTE STATEMENT SET BEGIN
INSERT INTO chosen SELECT auction, bidder, price, `dateTime` FROM bid WHERE price % 50 = 1;
INSERT INTO counts
  SELECT auction, window_start, COUNT(*), SUM(price), MAX(price)
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end;
END;
