import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # tests report to nobody
