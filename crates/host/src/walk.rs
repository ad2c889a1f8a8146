//! A traversal as its host knows it between two requests: its state, and what its next request carries (PROTOCOL 11.4).
//!
//! Key type: [`Walk`].

use alloc::vec::Vec;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use farmem_wire::message::Traverse;

/// A traversal between requests.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) program: Program,
    pub(crate) cur_ptr: VirtAddr,
    pub(crate) scratch: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) limit: u32,
    pub(crate) requests: u32,
    pub(crate) carries: Carries,
    /// Its request went in a batch.
    pub(crate) in_batch: bool,
}

/// What the last request of a traversal carried beside its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carries {
    /// The program's name: the node knows it, or will ask.
    Name,
    /// Its code.
    Code,
    /// Its code in place of the state, as they do not fit one datagram: iterations none, the pad empty (PROTOCOL 11.4).
    Introduction,
    /// Its name, to a node that it was introduced to.
    NameIntroduced,
}

impl Walk {
    /// What a request carries as long as no node asked for the code. One that stores has it with it where both fit, so that all its copies have one
    /// id, under which it is executed once wherever a node that lost its memory would have asked (PROTOCOL 9.8).
    pub(crate) fn begin(&mut self, room: usize) {
        let both = self.scratch.len() + self.program.encoded().len() <= room;
        self.carries = if self.program.stores() && both { Carries::Code } else { Carries::Name };
    }

    /// What the next request carries, now that a node does not know the program.
    pub(crate) fn introduce(&mut self, room: usize) {
        let state = Traverse::without_zeros(&self.scratch).len();
        let fits = state + self.program.encoded().len() <= room;
        self.carries = if fits { Carries::Code } else { Carries::Introduction };
    }

    /// True when the answer has the program and the lengths that the request asked for, and is as far as it or further.
    pub(crate) fn is_answered_by(&self, state: &Traverse<'_>) -> bool {
        let limit = if self.carries == Carries::Introduction { self.iterations } else { self.limit };
        state.program == self.program.hash()
            // Also of an answer to code that went ahead: the node answers with zeros, of which it leaves out whole blocks only.
            && state.scratch.len() <= self.scratch.len()
            && state.limit == limit
            && (self.iterations..=limit).contains(&state.iterations)
    }

    /// The request's body.
    pub(crate) fn traverse(&self) -> Traverse<'_> {
        let Self { program, cur_ptr, iterations, limit, scratch, carries, .. } = self;
        let introduces = *carries == Carries::Introduction;
        Traverse {
            program: program.hash(),
            cur_ptr: *cur_ptr,
            iterations: *iterations,
            limit: if introduces { *iterations } else { *limit },
            scratch: if introduces { &[] } else { Traverse::without_zeros(scratch) },
            code: match carries {
                Carries::Code | Carries::Introduction => program.encoded(),
                Carries::Name | Carries::NameIntroduced => &[],
            },
        }
    }
}
