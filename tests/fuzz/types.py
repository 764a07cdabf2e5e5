"""The column types that are tried."""

#: Every type that a stream takes, by its word.
TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(10,2)",
    "decimal(38,18)",
    "decimal(5,0)",
    "array<bigint>",
    "array<decimal(10,2)>",
    "map<string,double>",
    "map<date,decimal(20,4)>",
    "struct<p:int,q:string>",
    "array<struct<a:timestamp,b:array<float>>>",
]
