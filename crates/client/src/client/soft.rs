//! Soft state of switches: the sections that this client's domain publishes, and the active image (PROTOCOL
//! 13, 16.3).

use crate::client::Client;
use crate::error::Error;
use farmem_control::api::{
    SoftClear, SoftCounted, SoftCounts, SoftLoad, SoftName, SoftRead, SoftSection, SoftShow, SoftShown,
};

impl Client {
    /// Publishes sections of this domain. The switch keeps them in addition to other sections, and replaces sections
    /// of the same kind and id. Returns the epoch of the image that contains them, once that image is active.
    ///
    /// No log has these sections. A restarted switch receives them again; a restarted control plane does not
    /// have them. The sections end when this client leaves (PROTOCOL 13.8 to 13.12).
    ///
    /// # Errors
    /// [`Error::Refused`] if the switch has too little memory for the sections, or if a section is invalid
    /// for its kind; [`Error::Api`] if the control plane does not answer.
    pub fn load_soft_state(&mut self, sections: Vec<SoftSection>) -> Result<u64, Error> {
        self.load_soft_state_at(None, sections)
    }

    /// Publishes sections as [`Client::load_soft_state`] does, at an index switch, which has this number in
    /// [`Client::overview`]; `None` is the rack's switch (PROTOCOL 16.3).
    ///
    /// # Errors
    /// The errors of [`Client::load_soft_state`], and [`Error::Refused`] if the switch does not exist.
    pub fn load_soft_state_at(
        &mut self,
        switch: Option<u16>,
        sections: Vec<SoftSection>,
    ) -> Result<u64, Error> {
        let (host, domain) = (self.host, self.domain.0);
        self.path.call(SoftLoad { host, domain, sections, switch }).map(|loaded| loaded.epoch)
    }

    /// Withdraws sections of this domain; all of them if `sections` is empty. Sections of other domains stay.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane does not answer; [`Error::Refused`] if the switch does not.
    pub fn clear_soft_state(&mut self, sections: Vec<SoftName>) -> Result<(), Error> {
        self.clear_soft_state_at(None, sections)
    }

    /// Withdraws sections as [`Client::clear_soft_state`] does, from an index switch by its number; `None` is
    /// the rack's switch.
    ///
    /// # Errors
    /// The errors of [`Client::clear_soft_state`], and [`Error::Refused`] if the switch does not exist.
    pub fn clear_soft_state_at(&mut self, switch: Option<u16>, sections: Vec<SoftName>) -> Result<(), Error> {
        self.path.call(SoftClear { domain: self.domain.0, sections, switch })
    }

    /// Returns a section that this domain has published, whether or not it is active, from an index switch by
    /// its number; `None` is the rack's switch. The methods below name the switch in the same way.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`](farmem_control::api::ErrorCode::NotFound) if the
    /// section does not exist; [`Error::Api`] if the control plane does not answer.
    pub fn soft_section(&mut self, switch: Option<u16>, name: SoftName) -> Result<Vec<u8>, Error> {
        let SoftName { kind, id } = name;
        self.path.call(SoftRead { domain: self.domain.0, kind, id, switch }).map(|section| section.bytes.0)
    }

    /// Returns how often each branch of a section's tables was taken since the section's image became active
    /// (PROTOCOL 13.17).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`ErrorCode::NotFound`](farmem_control::api::ErrorCode::NotFound) if the
    /// section is not active at the switch; [`Error::Api`] if the control plane does not answer.
    pub fn soft_counts(&mut self, switch: Option<u16>, name: SoftName) -> Result<SoftCounted, Error> {
        let SoftName { kind, id } = name;
        self.path.call(SoftCounts { domain: self.domain.0, kind, id, switch })
    }

    /// Returns the switch's soft state.
    ///
    /// # Errors
    /// [`Error::Refused`] if the switch does not answer; [`Error::Api`] if the control plane does not.
    pub fn soft_shown(&mut self, switch: Option<u16>) -> Result<SoftShown, Error> {
        self.path.call(SoftShow { switch })
    }
}
