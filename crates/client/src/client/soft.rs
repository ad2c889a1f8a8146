//! Soft state of switches: what this client's domain publishes there, and what stands (PROTOCOL 13, 16.3).

use crate::client::Client;
use crate::error::Error;
use farmem_control::api::{
    SoftClear, SoftCounted, SoftCounts, SoftLoad, SoftName, SoftRead, SoftSection, SoftShow, SoftShown,
};

impl Client {
    /// Publishes sections of this domain: the switch holds them beside those of others, and in the place of those of the same kind and id. Answers the epoch
    /// of the image when they stand. They are in no log: a switch that starts again is given them again, a control plane that starts again is not; and
    /// they go when this client leaves (PROTOCOL 13.8 to 13.12).
    ///
    /// # Errors
    /// [`Error::Refused`] when the switch has no room for them, or a section is not what its kind says; [`Error::Api`] when the control plane does not answer.
    pub fn load_soft_state(&mut self, sections: Vec<SoftSection>) -> Result<u64, Error> {
        self.load_soft_state_at(None, sections)
    }

    /// As [`Client::load_soft_state`], for a switch of the index, by its number in [`Client::overview`]; none: for the rack's switch (PROTOCOL 16.3).
    ///
    /// # Errors
    /// As [`Client::load_soft_state`]; [`Error::Refused`] too when there is no such switch.
    pub fn load_soft_state_at(
        &mut self,
        switch: Option<u16>,
        sections: Vec<SoftSection>,
    ) -> Result<u64, Error> {
        let (host, domain) = (self.host, self.domain.0);
        self.path.call(SoftLoad { host, domain, sections, switch }).map(|loaded| loaded.epoch)
    }

    /// Withdraws sections of this domain, all when none is named; those of other domains stay.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane does not answer; [`Error::Refused`] when the switch does not.
    pub fn clear_soft_state(&mut self, sections: Vec<SoftName>) -> Result<(), Error> {
        self.clear_soft_state_at(None, sections)
    }

    /// As [`Client::clear_soft_state`], for a switch of the index, by its number; none: for the rack's switch.
    ///
    /// # Errors
    /// As [`Client::clear_soft_state`]; [`Error::Refused`] too when there is no such switch.
    pub fn clear_soft_state_at(&mut self, switch: Option<u16>, sections: Vec<SoftName>) -> Result<(), Error> {
        self.path.call(SoftClear { domain: self.domain.0, sections, switch })
    }

    /// A section that this domain has published, whether or not it stands.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`](farmem_control::api::ErrorCode::NotFound) when there is none; [`Error::Api`] when the control plane does not answer.
    pub fn soft_section(&mut self, name: SoftName) -> Result<Vec<u8>, Error> {
        self.soft_section_at(None, name)
    }

    /// As [`Client::soft_section`], for a switch of the index, by its number; none: for the rack's switch.
    ///
    /// # Errors
    /// As [`Client::soft_section`].
    pub fn soft_section_at(&mut self, switch: Option<u16>, name: SoftName) -> Result<Vec<u8>, Error> {
        let SoftName { kind, id } = name;
        self.path.call(SoftRead { domain: self.domain.0, kind, id, switch }).map(|section| section.bytes.0)
    }

    /// How often the branches of a section's tables were taken since its image stands (PROTOCOL 13.17).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`](farmem_control::api::ErrorCode::NotFound) when it does not stand at the switch; [`Error::Api`] when
    /// the control plane does not answer.
    pub fn soft_counts(&mut self, name: SoftName) -> Result<SoftCounted, Error> {
        self.soft_counts_at(None, name)
    }

    /// As [`Client::soft_counts`], for a switch of the index, by its number; none: for the rack's switch.
    ///
    /// # Errors
    /// As [`Client::soft_counts`].
    pub fn soft_counts_at(&mut self, switch: Option<u16>, name: SoftName) -> Result<SoftCounted, Error> {
        let SoftName { kind, id } = name;
        self.path.call(SoftCounts { domain: self.domain.0, kind, id, switch })
    }

    /// The switch's soft state.
    ///
    /// # Errors
    /// [`Error::Refused`] when it does not answer; [`Error::Api`] when the control plane does not.
    pub fn soft_shown(&mut self) -> Result<SoftShown, Error> {
        self.soft_shown_at(None)
    }

    /// As [`Client::soft_shown`], for a switch of the index, by its number; none: for the rack's switch.
    ///
    /// # Errors
    /// As [`Client::soft_shown`].
    pub fn soft_shown_at(&mut self, switch: Option<u16>) -> Result<SoftShown, Error> {
        self.path.call(SoftShow { switch })
    }
}
