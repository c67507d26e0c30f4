//! What the attribute refuses, and in which words: each file in `refusals/` fails to compile with exactly the messages
//! in the `.stderr` beside it. The numbers of pitfalls are those of `pitfalls.rs`.
//!
//! The messages that are the compiler's own change with its version. After a change that is meant,
//! `TRYBUILD=overwrite cargo test -p refusals` writes them anew: read the difference before it is committed.

#[test]
fn are_explained() {
    trybuild::TestCases::new().compile_fail("*.rs");
}
