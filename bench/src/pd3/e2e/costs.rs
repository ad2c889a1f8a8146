//! The costs of the variants, and the rows that they give.

use super::{PerVariant, Variant};
use crate::samples::median;
use crate::{Row, Samples, to_f64};
use std::time::Duration;

/// The measured costs of one variant.
#[derive(Clone, Debug)]
pub(super) struct VariantCosts {
    pub(super) wall: Duration,
    /// CPU time of the application's thread.
    pub(super) cpu: Duration,
    pub(super) missed: u64,
    pub(super) requests: u64,
    /// Time per request; all requests of a piece count equally.
    pub(super) each: Samples,
}

impl VariantCosts {
    pub(super) fn rate(&self) -> f64 {
        to_f64(self.requests) / self.wall.as_secs_f64()
    }

    pub(super) fn cpu_ns(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / to_f64(self.requests)
    }
}

/// Returns the median of some rounds.
pub(super) fn middle(taken: &[VariantCosts], what: fn(&VariantCosts) -> f64) -> f64 {
    median(&mut taken.iter().map(what).collect::<Vec<_>>())
}

/// Returns a rate's row, with the CPU time per request in the application's thread.
pub(super) fn rate(id: &str, of: &[VariantCosts], n: u64) -> Row {
    Row::figure(id, "1/s", middle(of, VariantCosts::rate), n).with_cpu(Some(middle(of, VariantCosts::cpu_ns)))
}

/// Returns the rate rows of the variants without a DPU, compared with all items local.
pub(super) fn rows_of_variants(id: &str, taken: &PerVariant<Vec<VariantCosts>>, n: u64) -> Vec<Row> {
    let local = middle(&taken[Variant::Local as usize], VariantCosts::rate);
    let row = |(variant, of): (Variant, &Vec<VariantCosts>)| {
        let baseline = (variant != Variant::Local).then_some(local);
        rate(&format!("{id}.{}", variant.name()), of, n).beside(baseline)
    };
    Variant::ALL.into_iter().zip(taken).map(row).collect()
}

/// Returns the request times of some rounds.
fn each(taken: &[VariantCosts]) -> Samples {
    let mut all = Samples::new();
    taken.iter().for_each(|taken| all.add(&taken.each));
    all
}

/// Returns the rows of request times, compared with other ones.
pub(super) fn times(id: &str, of: &[VariantCosts], beside: &[VariantCosts], n: u64) -> [Row; 2] {
    let (of, beside) = (each(of), each(beside));
    [("p50", 0.5), ("p99", 0.99)].map(|(row, quantile)| {
        let why = "of a piece's requests, divided by their number; beside READs one by one".to_owned();
        let row = Row::figure(format!("{id}.{row}"), "ns", of.quantile(quantile), n);
        Row { why: Some(why), ..row.beside(Some(beside.quantile(quantile))) }
    })
}
