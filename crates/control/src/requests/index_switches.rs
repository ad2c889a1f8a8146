//! The index switches: their joins and leaves, which of them know each other, and their routes (PROTOCOL 16.1
//! to 16.4; Fat-B+Tree IV-A).
//!
//! An index switch names the members below it; from that follow the servers it leads to, and the port of
//! each. Routes are soft state: each switch's image has a section of them, rebuilt when a member joins or
//! leaves. The log only records the joins.

use crate::api::{ErrorCode, JoinIndex};
use crate::bounds::{BELOW_MAX, INDEX_MAX};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, bound, error};
use crate::rack::Rack;
use crate::record::{ChangeKind, IndexRow};
use crate::requests::members::{MemberKind, name_allowed};
use crate::state::claims::Claim;
use alloc::collections::BTreeSet;
use alloc::format;
use farmem_machine::Port;

impl Rack {
    pub(crate) fn join_index(&mut self, call: &JoinIndex) -> Decided<JoinIndex> {
        let JoinIndex { name, gid, tier, below } = call;
        self.name_free(MemberKind::Index, name)?;
        if below.is_empty() || below.len() > BELOW_MAX {
            let message = format!("{name} names {} others below it", below.len());
            return Err(bad(
                message,
                format!("name 1 to {BELOW_MAX}: switches of the index, or memory nodes"),
            ));
        }
        let mut names = BTreeSet::new();
        for other in below {
            name_allowed("switch or node below", other)?;
            if other == name || !names.insert(other) {
                let message = format!("{name} names {other} below it twice, or is {other} itself");
                return Err(bad(message, "name each once"));
            }
        }
        let rows = || self.state.index.iter();
        let known = rows().find(|(_, row)| row.name == *name).map(|(&index, _)| index);
        let mut others = rows().filter(|(index, _)| Some(**index) != known);
        if let Some((_, row)) = others.find(|(_, row)| row.below.iter().any(|taken| names.contains(taken))) {
            let message = format!("a member below {name} is already below {}", row.name);
            let remedy = "have each name below one switch: look at the `below` of both in rack.toml";
            return Err(error(ErrorCode::Conflict, message, remedy));
        }
        // A leaving switch keeps its number until all roles know of it.
        let leaving = self.state.claims();
        let is_free = |index: &u16| {
            !self.state.index.contains_key(index) && !leaving.contains(&Claim::Member(Port::index(*index).0))
        };
        let free = || (1..=INDEX_MAX).find(is_free);
        let index = known.or_else(free).ok_or_else(|| bound("switches of the index", INDEX_MAX))?;
        let gid = self.free_gid(gid, Port::index(index))?;
        let (name, below, home) = (name.clone(), below.clone(), self.draw_key());
        let row = IndexRow { name, gid, home, generation: 0, tier: *tier, below, since: 0, joining: None };
        Ok(Decision::Begin(ChangeKind::JoinIndex { index, row }))
    }
}
