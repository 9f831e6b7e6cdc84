"""A job keeps its checkpoints on an S3 server; its process is killed, and its machine lost, again and again.

The data directory is removed before every other start, so that nothing but the object store remembers. The output must
equal what Python computes, and old checkpoints must be gone from the store.
"""

import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import boto3

JOB = """
SET 'checkpoint.interval' = '60 ms';
SET 'state.backend' = '{backend}';
SET 'state.checkpoints.dir' = 's3://state/jobs';
SET 's3.endpoint' = 'http://127.0.0.1:{port}';
SET 's3.access-key' = 'key'; SET 's3.secret-key' = 'secret'; SET 's3.region' = 'us-east-1';
CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '{rows}', 'rows-per-second' = '{rate}',
  'fields.i.kind' = 'sequence', 'fields.i.start' = '1', 'fields.i.end' = '{rows}');
CREATE TABLE chosen (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{dir}/chosen', 'format' = 'csv');
CREATE TABLE sums (k BIGINT, n BIGINT, s BIGINT) WITH ('connector' = 'filesystem', 'path' = '{dir}/sums', 'format' = 'debezium-json');
EXECUTE STATEMENT SET BEGIN
INSERT INTO chosen SELECT i FROM numbers WHERE i % 3 = 0;
INSERT INTO sums SELECT i % 100, COUNT(*), SUM(i) FROM numbers GROUP BY i % 100;
END;
"""


def visible(folder):
    return [f for f in folder.glob("*") if not f.name.startswith(".")]


def check(directory, rows):
    import json
    got = collections.Counter(line for f in visible(directory / "chosen") for line in f.read_text().splitlines())
    want = collections.Counter(str(i) for i in range(3, rows + 1, 3))
    assert got == want, f"chosen: {(want - got).total()} rows lost, {(got - want).total()} doubled"
    fold = collections.Counter()
    for file in visible(directory / "sums"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            for image, sign in (("before", -1), ("after", 1)):
                if event.get(image):
                    fold[tuple(event[image].values())] += sign
    sums = collections.defaultdict(lambda: [0, 0])
    for i in range(1, rows + 1):
        sums[i % 100][0] += 1
        sums[i % 100][1] += i
    assert {k for k, n in fold.items() if n} == {(k, *v) for k, v in sums.items()}, "sums differ"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millpond", default=os.environ.get("CARGO_TARGET_DIR", "target") + "/debug/millpond")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    moto = pathlib.Path(sys.executable).parent / "moto_server"
    server = subprocess.Popen([moto, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="key",
                              aws_secret_access_key="secret", region_name="us-east-1")
        for _ in range(300):
            try:
                client.create_bucket(Bucket="state")
                break
            except Exception:
                time.sleep(0.1)
        with tempfile.TemporaryDirectory() as directory:
            run(args, rng, pathlib.Path(directory), port, client)
    finally:
        server.kill()
        server.wait()


def run(args, rng, directory, port, client):
    rows, kills, lost = 20_000, 0, 0
    script = directory / "job.sql"

    def start():
        script.write_text(JOB.format(dir=directory, port=port, rows=rows, rate=4000,
                                     backend=rng.choice(["rocksdb", "filesystem"])))
        return subprocess.Popen([args.millpond, directory / "data", "-f", script, "--quiet"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    while True:
        process = start()
        try:
            _, errors = process.communicate(timeout=rng.uniform(0.3, 1.5) if kills < args.kills else 120)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            if rng.random() < 0.5:
                shutil.rmtree(directory / "data", ignore_errors=True)
                lost += 1
            continue
        if process.returncode != 0:
            raise SystemExit(f"the job failed after {kills} kills (seed {args.seed}): {errors}")
        break
    check(directory, rows)
    names = [item["Key"] for item in client.list_objects_v2(Bucket="state").get("Contents", [])]
    assert any(name.endswith("metadata.json") for name in names), names
    assert len([name for name in names if name.endswith("metadata.json")]) <= 4, f"old checkpoints stay: {names}"
    print(f"{kills} kills, {lost} machines lost: 0 rows lost, 0 doubled; {len(names)} objects are left (seed {args.seed})")


main()
