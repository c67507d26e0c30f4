//! What came out: tables as they are measured, and at the end one line for each target.

use tests::measure::Table;

use crate::runtimes::Flavour;

/// The targets, and what became of them.
pub(crate) struct Report {
    summary: Table,
    wrong: Vec<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        let summary = Table::new(["row", "runtime", "target", "measured", ""]);
        Self { summary, wrong: Vec::new() }
    }

    /// A target for something that takes its time, which is not the same on every machine and at every moment.
    pub(crate) fn timed(&mut self, row: &str, flavour: Flavour, target: &str, measured: &str, met: bool) {
        let verdict = if met { "met" } else { "missed" };
        self.summary.row([row, flavour.name(), target, measured, verdict]);
    }

    /// A target for something that is counted: to miss it is wrong everywhere.
    pub(crate) fn counted(&mut self, row: &str, flavour: Flavour, target: &str, measured: &str, met: bool) {
        self.timed(row, flavour, target, measured, met);
        if !met {
            self.wrong.push(format!("{row}, {}: {measured} instead of {target}", flavour.name()));
        }
    }

    /// The product must never fail.
    pub(crate) fn failures(&mut self, row: &str, flavour: Flavour, failed: usize) {
        if failed > 0 {
            self.counted(row, flavour, "no failure", &failed.to_string(), false);
        }
    }

    /// Prints the summary; whether nothing that is counted is wrong.
    pub(crate) fn finish(&self) -> bool {
        println!("## Summary\n\n{}", self.summary.markdown());
        for wrong in &self.wrong {
            println!("WRONG: {wrong}");
        }
        self.wrong.is_empty()
    }
}
