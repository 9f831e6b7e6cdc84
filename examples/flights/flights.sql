-- The flights that left New York in January 2013, with the weather of their hour.
--
-- Event time is the scheduled departure. Rows come in the order of actual departure, so they are
-- out of order by up to 19 hours; cancelled flights stand at the end of their day; NA is NULL.
-- Run me by `make demo`, or:  examples/flights/run

CREATE TABLE flights (
  dep_time INT, dep_delay INT, carrier STRING, flight INT, origin STRING, dest STRING,
  `minute` INT, time_hour TIMESTAMP_LTZ(3),
  scheduled AS CAST(time_hour AS TIMESTAMP(3)) + `minute` * INTERVAL '1' MINUTE,
  WATERMARK FOR scheduled AS scheduled - INTERVAL '17' HOUR
) WITH (
  'connector' = 'filesystem', 'path' = '$FLIGHTS/data/flights-2013-01.csv.gz',
  'format' = 'csv', 'csv.null-literal' = 'NA'
);

CREATE TABLE weather (
  origin STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE, time_hour TIMESTAMP_LTZ(3),
  at AS CAST(time_hour AS TIMESTAMP(3)),
  WATERMARK FOR at AS at - INTERVAL '1' HOUR
) WITH (
  'connector' = 'filesystem', 'path' = '$FLIGHTS/data/weather-2013-01.csv.gz',
  'format' = 'csv', 'csv.null-literal' = 'NA'
);

CREATE TABLE airlines (carrier STRING, name STRING)
WITH ('connector' = 'filesystem', 'path' = '$FLIGHTS/data/airlines.csv', 'format' = 'csv');

CREATE TABLE hourly (
  origin STRING, hour_start TIMESTAMP(3), flights BIGINT, mean_delay DOUBLE, worst_delay INT, cancelled BIGINT
) WITH ('connector' = 'filesystem', 'path' = '$OUT/hourly', 'format' = 'parquet');

-- Per airport and hour, exactly once, as Parquet.
INSERT INTO hourly
SELECT origin, window_start, COUNT(*), AVG(CAST(dep_delay AS DOUBLE)), MAX(dep_delay),
       COUNT(*) FILTER (WHERE dep_time IS NULL)
FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(scheduled), INTERVAL '1' HOUR))
GROUP BY origin, window_start, window_end;

-- The five worst hours.
SELECT * FROM hourly ORDER BY mean_delay DESC, origin, hour_start LIMIT 5;

-- How late were flights in rain, and in the dry, by airport?
SELECT f.origin, w.precip > 0 AS rain, COUNT(*) AS flights, ROUND(AVG(CAST(f.dep_delay AS DOUBLE)), 2) AS mean_delay
FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
GROUP BY f.origin, w.precip > 0
ORDER BY f.origin, rain;

-- The carriers by mean delay.
SELECT a.name, COUNT(*) AS flights, ROUND(AVG(CAST(f.dep_delay AS DOUBLE)), 2) AS mean_delay
FROM flights f JOIN airlines a ON f.carrier = a.carrier
GROUP BY a.name
ORDER BY mean_delay DESC;

-- Rows read, late and rejected.
SHOW JOBS;
