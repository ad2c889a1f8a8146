//! Commands of the applications in `apps/`: `farmem webservice`, `tablestore`, `timeseries`, `nativekvs` and
//! `graph`. PULSE's three applications also run together for `farmem demo`.

use crate::outcome::{End, Failure};
use crate::output::{self, Report as Printed};
use farmem::Client;
use farmem::series::Columns;
use farmem_tablestore as tablestore;
use farmem_timeseries as timeseries;
use farmem_webservice as webservice;
use farmem_workload::{Load, Outcome, Report, RunAt, STOPPED, stopped};

/// Printed report of an application.
impl Printed for Report {
    fn text(&self) -> String {
        Self::text(self)
    }
}

impl Printed for farmem_nativekvs::Outcome {
    fn text(&self) -> String {
        Outcome::text(self)
    }
}

impl Printed for farmem_graph::CommandReport {
    fn text(&self) -> String {
        Self::text(self)
    }
}

impl From<farmem_workload::Failure> for Failure {
    fn from(failure: farmem_workload::Failure) -> Self {
        Self::environment(failure.message, failure.remedy)
    }
}

/// Prints the result of an application and returns the end of the command.
pub(crate) fn finish(
    result: Result<impl Printed + Outcome, farmem_workload::Failure>,
    json: bool,
) -> Result<End, Failure> {
    let outcome = match result {
        Err(failure) if stopped() => {
            output::note(&format!("farmem: {}", failure.message));
            return Ok(End::Program(STOPPED));
        }
        other => other?,
    };
    output::print(&outcome, json);
    Ok(match outcome.wrong_answers() {
        0 if outcome.stopped() => End::Program(STOPPED),
        0 => End::Fine,
        _ => End::Violation,
    })
}

/// Number of operations in flight.
const IN_FLIGHT: usize = 32;
/// Maximum number of users of the web service: 128 buckets of 95 users.
const USERS_MAX: u64 = 12_160;
/// Maximum number of records of the table store.
const RECORDS_MAX: u64 = 100_000;
/// Maximum number of points of the recording.
const POINTS_MAX: u64 = 1_000_000;

/// Runs the three applications one after the other on the rack of `client`. The number of words, `size`,
/// scales them up to their full sizes.
pub(crate) fn all(client: &mut Client, transport: &'static str, size: u64) -> Result<Vec<Report>, Failure> {
    let load = |operations: u64| Load {
        operations: operations.max(100),
        in_flight: IN_FLIGHT,
        policy: RunAt::Auto,
        seed: 1,
        check: true,
    };
    let requests = load((size / 20).min(20_000));
    let users = (size / 10).clamp(95, USERS_MAX);
    let settings = webservice::Settings {
        records: users,
        objects: users,
        hops: 48,
        in_flight: IN_FLIGHT,
        ..Default::default()
    };
    let web = webservice::serve(client, transport, &settings, webservice::Mix::A, &requests)?;

    let operations = load((size / 100).min(4000));
    let settings = tablestore::Settings {
        records: size.clamp(1000, RECORDS_MAX),
        operations: operations.operations,
        ..Default::default()
    };
    let table = tablestore::serve(client, transport, &settings, &operations)?;

    let columns = Columns { time_decimals: 6, ..Columns::default() };
    let source = timeseries::Source::find(None, &columns, (size * 4).clamp(2000, POINTS_MAX))?;
    let series =
        timeseries::serve(client, transport, &source, timeseries::CHANNELS, &load((size / 20).min(20_000)))?;
    Ok(vec![web, table, series])
}
