//! `farmem nativekvs`: the store shared by workers, which are this command again.

use crate::output::{self, Report};
use crate::{End, Failure};
use farmem_nativekvs::{Args, Outcome};

impl Report for Outcome {
    fn text(&self) -> String {
        Self::text(self)
    }
}

pub(crate) fn run(args: &Args) -> Result<End, Failure> {
    let outcome = farmem_nativekvs::run(args)?;
    output::print(&outcome, args.json);
    Ok(if outcome.wrong_answers == 0 { End::Fine } else { End::Violation })
}
