"""Writes files for files.rs into the folder that is the argument. Exit code 3: a library is absent."""

import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

try:
    import polars
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit(3)

folder = Path(sys.argv[1])
schema = pyarrow.schema(
    [
        ("id", pyarrow.uint64()),
        ("double", pyarrow.float64()),
        ("float", pyarrow.float32()),
        ("whole", pyarrow.decimal128(10, 0)),
        ("price", pyarrow.decimal128(10, 2)),
        ("day", pyarrow.date32()),
        ("is", pyarrow.bool_()),
        ("text", pyarrow.string()),
        ("count", pyarrow.uint8()),
        ("places", pyarrow.float64()),
    ]
)
columns = {
    "id": [1, 2, 3, 4],
    "double": [-2.5, 0.0, 1e300, 0.1],
    "float": [-2.5, 0.0, 16777216.0, 0.1],
    "whole": [Decimal(7), Decimal(-70), Decimal(0), Decimal(1234567890)],
    "price": [Decimal("7.50"), Decimal("-0.05"), Decimal("0.00"), Decimal("12345678.90")],
    "day": [date(2026, 11, 29), date(1969, 12, 31), date(1970, 1, 1), date(1, 1, 1)],
    "is": [True, False, True, False],
    "text": ["a,b", "", None, "\u00e9"],
    "count": [1, 255, None, 0],
    "places": [9.0, -3.0, 0.0, -4.0],
}
table = pyarrow.table(columns, schema=schema)
frame = polars.from_arrow(table)
for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]:
    pyarrow.parquet.write_table(table, folder / f"pyarrow-{codec}.parquet", compression=codec)
    polars_codec = "uncompressed" if codec == "none" else codec
    frame.write_parquet(folder / f"polars-{codec}.parquet", compression=polars_codec)

ids = polars.DataFrame({"id": [1, 2]})
ids.write_csv(folder / "bom.csv", include_bom=True)
ids.write_csv(folder / "bare-bom.csv", include_bom=True, include_header=False)
for encoding in ["utf-16", "utf-16-le", "utf-16-be", "utf-32"]:
    (folder / f"{encoding}.csv").write_text("id\n1\n2\n", encoding=encoding)
