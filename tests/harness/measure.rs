//! Measurements: medians with their spread, ratios of what was taken in the same run, and the tables that show them.

use std::fmt::Write as _;

/// Numbers of one kind, taken one after another.
#[derive(Debug, Clone, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Adds a number.
    pub fn push(&mut self, number: f64) {
        self.0.push(number);
    }

    /// All of them, in the order in which they were taken.
    #[must_use]
    pub fn numbers(&self) -> &[f64] {
        &self.0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The smallest number that at least this share of all numbers does not exceed: 0.5 gives the median, 0.99 the
    /// 99th percentile. Not a number if there are none.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The number in the middle.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Each number divided by the one of `other` that was taken in the same round.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(this, other)| this / other).collect())
    }

    /// The least number of each round, of several samples.
    #[must_use]
    pub fn least_of(samples: impl IntoIterator<Item = Self>) -> Self {
        let least =
            |one: Self, other: Self| Self(one.0.iter().zip(&other.0).map(|(a, b)| a.min(*b)).collect());
        samples.into_iter().reduce(least).unwrap_or_default()
    }

    /// The median, and the smallest and largest number: `0.97 (0.95–0.99)`.
    #[must_use]
    pub fn spread(&self, decimals: usize) -> String {
        let (least, most) = (self.quantile(0.0), self.quantile(1.0));
        format!("{:.decimals$} ({least:.decimals$}–{most:.decimals$})", self.median())
    }
}

impl Extend<f64> for Sample {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, numbers: I) {
        self.0.extend(numbers);
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

/// A table in Markdown whose columns line up, so that it can be read in a terminal and pasted into a document.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![columns.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The whole table, each line with its end.
    #[must_use]
    pub fn markdown(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0).max(3)).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let _ = write!(text, "| {cell:<width$} ");
            }
            text.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(text, "|{:-<1$}", "", width + 2);
                }
                text.push_str("|\n");
            }
        }
        text
    }
}
