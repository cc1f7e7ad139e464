"""What is written and read back."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a file takes its name before it is on disk",
        file="vcbench/records/files.py",
        before="            write_all(descriptor, data)\n            os.fsync(descriptor)\n",
        after="            write_all(descriptor, data)\n",
        tests=("tests/records/test_output.py::test_a_file_is_on_disk_before_it_takes_its_name",),
    ),
    Mutation(
        name="a planted link is followed",
        file="vcbench/records/files.py",
        before="os.O_EXCL | ",
        after="",
        tests=("tests/records/test_output.py::test_a_planted_link_is_not_followed",),
    ),
    Mutation(
        name="two writers share a run",
        file="vcbench/records/files.py",
        before="fcntl.LOCK_EX | fcntl.LOCK_NB",
        after="fcntl.LOCK_SH | fcntl.LOCK_NB",
        tests=("tests/records/test_store.py::test_two_writers",),
    ),
    Mutation(
        name="a checksum covers nothing",
        file="vcbench/records/codec.py",
        before="hashlib.sha256(body).hexdigest()",
        after="hashlib.sha256().hexdigest()",
        tests=("tests/records/test_codec.py",),
    ),
    Mutation(
        name="surrogates are dropped",
        file="vcbench/records/codec.py",
        before='"backslashreplace"',
        after='"ignore"',
        tests=("tests/records/test_codec.py::test_surrogates_are_spelled_out",),
    ),
    Mutation(
        name="an infinite number is written",
        file="vcbench/records/codec.py",
        before="float(value) if math.isfinite(value) else None",
        after="float(value)",
        tests=("tests/records/test_codec.py::test_numbers_that_are_not_finite",),
    ),
    Mutation(
        name="lines of two tasks share a key",
        file="vcbench/records/codec.py",
        before="return (line.cell, line.task, line.request, line.kind)",
        after='return (line.cell, "", line.request, line.kind)',
        tests=("tests/records/test_codec.py::test_keys_tell_lines_apart",),
    ),
)
