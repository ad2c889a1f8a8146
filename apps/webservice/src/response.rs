//! Responses: objects compressed, then encrypted (AES-256-GCM). Encrypted data does not compress, hence the
//! order.

use aes_gcm::aead::{AeadInOut, Generate, KeyInit};
use aes_gcm::{Aes256Gcm, Key, Nonce};

/// Bytes of the tag after a response.
const TAG_LEN: usize = 16;
/// Bytes of the nonce before a response.
const NONCE_LEN: usize = 12;

/// A maker of responses with its own key; each response has its own nonce.
pub(crate) struct Responder {
    cipher: Aes256Gcm,
    made: u64,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self { cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::generate()), made: 0 }
    }

    /// Writes the response for `object` into `into`: nonce, text, tag.
    pub(crate) fn respond(&mut self, object: &[u8], into: &mut Vec<u8>) {
        let room = lz4_flex::block::get_maximum_output_size(object.len());
        into.clear();
        into.resize(NONCE_LEN + room, 0);
        let len = lz4_flex::block::compress_into(object, &mut into[NONCE_LEN..])
            .expect("there is room for the largest output");
        into.truncate(NONCE_LEN + len);
        self.made += 1; // one key sends far fewer than 2^64 responses
        into[..8].copy_from_slice(&self.made.to_le_bytes());
        let (nonce, text) = into.split_at_mut(NONCE_LEN);
        let nonce = Nonce::try_from(&*nonce).expect("its length is that of a nonce");
        let tag = self
            .cipher
            .encrypt_inout_detached(&nonce, &[], text.into())
            .expect("far below the cipher's limit");
        into.extend_from_slice(&tag);
    }

    /// Decrypts a response of `object_len` bytes; `None` when it is not genuine.
    pub(crate) fn open(&self, response: &[u8], object_len: usize) -> Option<Vec<u8>> {
        let (nonce, rest) = response.split_at_checked(NONCE_LEN)?;
        let (text, tag) = rest.split_at_checked(rest.len().checked_sub(TAG_LEN)?)?;
        let mut text = text.to_vec();
        let (nonce, tag) = (nonce.try_into().ok()?, tag.try_into().ok()?);
        self.cipher.decrypt_inout_detached(&nonce, &[], text.as_mut_slice().into(), &tag).ok()?;
        lz4_flex::block::decompress(&text, object_len).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{OBJECT_LEN, compose};

    #[test]
    fn a_response_is_small_secret_and_genuine() {
        let (mut object, mut response, mut again) = (Vec::new(), Vec::new(), Vec::new());
        compose(1, 1, &mut object);
        let mut responder = Responder::new();
        responder.respond(&object, &mut response);
        assert!(response.len() < OBJECT_LEN * 3 / 4, "{} bytes", response.len());
        assert_eq!(responder.open(&response, OBJECT_LEN), Some(object.clone()));
        responder.respond(&object, &mut again);
        assert_ne!(response, again, "another nonce, another text");
        assert_eq!(Responder::new().open(&response, OBJECT_LEN), None, "another key");
        response[40] ^= 1;
        assert_eq!(responder.open(&response, OBJECT_LEN), None);
    }
}
