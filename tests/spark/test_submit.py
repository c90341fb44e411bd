"""A program that spark-submit runs."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from skep.spark.java import ensure_java
from tests.cli.process import environment

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PROGRAM = """
from skep.spark import session

spark = session()
queues = spark.read.format("skep").option("subscribe", "orders").load()
print("on", spark.sparkContext.master, spark.conf.get("spark.sql.session.timeZone"), queues.count())
"""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_the_master_is_that_of_spark_submit(database_url: str, tmp_path: Path):
    """Settings of a program override those of spark-submit, so `session` must not set it; and it finds the source."""
    ensure_java()
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false", tmp_path / "program.py"]
    env = environment(SKEP_DATABASE_URL=database_url, PYSPARK_PYTHON=sys.executable)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on local[1] UTC 0\n"), done.stderr
