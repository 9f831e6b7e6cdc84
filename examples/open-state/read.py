"""Runs a job over changing rows, stops it, and reads its state three ways: by SQL, DuckDB and pandas.

All of them must give what Python counts from the same changes. The newest checkpoint consists of a
base and deltas, with rows that were changed and groups that are gone.
"""

import argparse
import collections
import csv
import io
import json
import pathlib
import random
import signal
import subprocess
import tempfile
import time

import duckdb
import pandas

JOB = """
SET 'checkpoint.interval' = '100 ms';
CREATE TABLE orders (id BIGINT, customer STRING, amount BIGINT) WITH (
  'connector' = 'filesystem', 'path' = '{dir}/in', 'format' = 'debezium-json', 'source.monitor-interval' = '20 ms');
CREATE TABLE totals (customer STRING, orders BIGINT, amount BIGINT) WITH ('connector' = 'blackhole');
INSERT INTO totals SELECT customer, COUNT(*), SUM(amount) FROM orders GROUP BY customer;
"""


def changes(seed):
    """Five rounds of events, and the rows that are left after them."""
    rng, rows, rounds = random.Random(seed), {}, []
    for round_number in range(5):
        events = []
        for _ in range(3000 if round_number == 0 else 60):
            known = rng.choice(list(rows)) if rows and rng.random() < 0.4 else None
            if known is None:
                row = {"id": len(rows) + rng.getrandbits(40), "customer": f"c{rng.randrange(800)}", "amount": rng.randrange(100)}
                events.append({"op": "c", "before": None, "after": row})
                rows[row["id"]] = row
            elif rng.random() < 0.5:
                row = dict(rows[known], amount=rng.randrange(100))
                events.append({"op": "u", "before": rows[known], "after": row})
                rows[known] = row
            else:
                events.append({"op": "d", "before": rows.pop(known), "after": None})
        if round_number == 3:
            # Groups that go as a whole.
            for known in [key for key, row in rows.items() if row["customer"] < "c2"]:
                events.append({"op": "d", "before": rows.pop(known), "after": None})
        rounds.append(events)
    totals = collections.defaultdict(lambda: [0, 0])
    for row in rows.values():
        totals[row["customer"]][0] += 1
        totals[row["customer"]][1] += row["amount"]
    return rounds, {customer: tuple(total) for customer, total in totals.items()}


def newest(job):
    """Number and metadata of the newest checkpoint."""
    found = [(int(path.parent.name[4:]), path) for path in job.glob("chk-*/metadata.json")]
    if not found:
        return 0, None
    number, path = max(found)
    return number, json.loads(path.read_text())


def table_of(metadata):
    """Uid and parts of the table of groups."""
    for uid, operator in metadata["operators"].items():
        if "groups" in operator["tables"]:
            return uid, [part for parts in operator["tables"]["groups"]["parts"].values() for part in parts]
    raise SystemExit("the checkpoint has no table of groups")


def run(millpond, directory, rounds):
    (directory / "in").mkdir()
    (directory / "job.sql").write_text(JOB.format(dir=directory))
    job = directory / "data" / "jobs" / "job-1"
    process = subprocess.Popen([millpond, directory / "data", "-f", directory / "job.sql"], stderr=subprocess.PIPE)
    parts = 0
    for number, events in enumerate(rounds):
        text = "".join(json.dumps(event) + "\n" for event in events)
        (directory / "in" / f".{number}").write_text(text)
        (directory / "in" / f".{number}").rename(directory / "in" / f"{number}.json")
        deadline = time.monotonic() + 60
        while True:
            metadata = newest(job)[1]
            written = len(table_of(metadata)[1]) if metadata and any(
                "groups" in operator["tables"] for operator in metadata["operators"].values()) else 0
            if written > parts:
                parts = written
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job has not written round {number}: {process.stderr.read().decode()}")
            time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return job


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millpond", default="target/debug/millpond")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rounds, expected = changes(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        job = run(arguments.millpond, directory, rounds)
        number, metadata = newest(job)
        uid, parts = table_of(metadata)
        files = [str(job / part["file"]["path"]) for part in parts if part["file"]]
        kinds = collections.Counter("base" if part["base"] else "delta" for part in parts)
        assert kinds["base"] and kinds["delta"] > 1, f"base and deltas are wanted, not {kinds}"

        sql = f"SELECT customer, `COUNT(*).count`, `SUM(amount).sum` FROM checkpoint_state('1', '{uid}')"
        shown = subprocess.run([arguments.millpond, directory / "data", "--format", "csv", "-c", sql],
                               capture_output=True, text=True, check=True).stdout
        by_sql = {row[0]: (int(row[1]), int(row[2])) for row in list(csv.reader(io.StringIO(shown)))[1:]}

        by_duckdb = duckdb.sql("""
            SELECT customer, "COUNT(*).count", "SUM(amount).sum" FROM (
              SELECT *, row_number() OVER (PARTITION BY customer ORDER BY
                regexp_extract(filename, '-([0-9]+)-[0-9]+[.]parquet$', 1)::BIGINT DESC) AS newest
              FROM read_parquet($1, union_by_name = true, filename = true))
            WHERE newest = 1 AND _op = 0""", params=[files]).fetchall()
        by_duckdb = {row[0]: (row[1], int(row[2])) for row in by_duckdb}

        written = [part["checkpoint"] for part in parts if part["file"]]
        read = [pandas.read_parquet(file).assign(checkpoint=of) for file, of in zip(files, written)]
        frame = pandas.concat(read).sort_values("checkpoint").groupby("customer").tail(1)
        frame = frame[frame["_op"] == 0]
        by_pandas = {row["customer"]: (int(row["COUNT(*).count"]), int(row["SUM(amount).sum"])) for _, row in frame.iterrows()}

    for name, read in [("checkpoint_state", by_sql), ("DuckDB", by_duckdb), ("pandas", by_pandas)]:
        assert read == expected, f"{name} reads {len(read)} groups, {len(expected)} are right"
    print(f"checkpoint {number}: {len(expected)} groups in {kinds['base']} bases and {kinds['delta']} deltas, "
          "the same by checkpoint_state, DuckDB and pandas")


main()
