//! A traversal between two requests: its state, and the contents of its next request (PROTOCOL 11.4).
//!
//! Key type: [`Traversal`].

use alloc::vec::Vec;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use farmem_wire::message::Traverse;

/// A traversal between requests.
#[derive(Debug)]
pub(crate) struct Traversal {
    pub(crate) program: Program,
    pub(crate) cur_ptr: VirtAddr,
    pub(crate) scratch: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) limit: u32,
    pub(crate) requests: u32,
    pub(crate) form: ProgramForm,
    /// True if its request went in a batch.
    pub(crate) in_batch: bool,
}

/// The program part of a traversal's last request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramForm {
    /// The program's hash: the node knows the program, or asks for the code.
    Name,
    /// The program's code.
    Code,
    /// The code in place of the state, because both do not fit one datagram: no iterations, an empty pad
    /// (PROTOCOL 11.4).
    Introduction,
    /// The hash, to a node that has received the code.
    NameIntroduced,
}

impl Traversal {
    /// Chooses the contents of the first request. A program that stores sends its code along if state and
    /// code fit: then all copies have one id, under which the traversal executes once even if a node has lost
    /// its programs (PROTOCOL 9.8).
    pub(crate) fn begin(&mut self, room: usize) {
        let both = self.scratch.len() + self.program.encoded().len() <= room;
        self.form = if self.program.stores() && both { ProgramForm::Code } else { ProgramForm::Name };
    }

    /// Chooses the contents of the next request after a node reported an unknown program.
    pub(crate) fn introduce(&mut self, room: usize) {
        let state = Traverse::without_zeros(&self.scratch).len();
        let fits = state + self.program.encoded().len() <= room;
        self.form = if fits { ProgramForm::Code } else { ProgramForm::Introduction };
    }

    /// Returns true if the answer has the program and the lengths of the request, and at least as many
    /// iterations.
    pub(crate) fn is_answered_by(&self, state: &Traverse<'_>) -> bool {
        let limit = if self.form == ProgramForm::Introduction { self.iterations } else { self.limit };
        state.program == self.program.hash()
            // This includes the answer to an introduction: the node answers with zeros, and omits whole
            // blocks only.
            && state.scratch.len() <= self.scratch.len()
            && state.limit == limit
            && (self.iterations..=limit).contains(&state.iterations)
    }

    /// Returns the request's body.
    pub(crate) fn traverse(&self) -> Traverse<'_> {
        let Self { program, cur_ptr, iterations, limit, scratch, form, .. } = self;
        let introduces = *form == ProgramForm::Introduction;
        Traverse {
            program: program.hash(),
            cur_ptr: *cur_ptr,
            iterations: *iterations,
            limit: if introduces { *iterations } else { *limit },
            scratch: if introduces { &[] } else { Traverse::without_zeros(scratch) },
            code: match form {
                ProgramForm::Code | ProgramForm::Introduction => program.encoded(),
                ProgramForm::Name | ProgramForm::NameIntroduced => &[],
            },
        }
    }
}
