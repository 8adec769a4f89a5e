//! API keys: 256 random bits, shown once, kept as a hash, compared in constant time.
//!
//! A token is `lzr_<16 characters of the key's id>_<43 characters of secret>`. The id half finds the
//! row, so finding it tells nothing about the secret; the hash of the whole token decides. A key that
//! was revoked or has expired stops working with the next request: nothing is cached.

use crate::again::{already_done, digest, other_request};
use crate::ports::clock::Clock;
use crate::ports::random::Random;
use crate::ports::store::{Asked, KeyRecord, Named, Store};
use crate::{IdempotencyKey, Principal};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazaret_api::public::{CreateKey, Key, KeyList, NewKey, Scope};
use lazaret_domain::{Denial, DenialCode, KeyId};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;

const PREFIX: &str = "lzr_";
const ID_CHARS: usize = 16;
const SECRET_CHARS: usize = 43;
const NAME_CHARS: usize = 64;

/// A secret text. It has no `Debug` or `Display`: it is shown on purpose or not at all.
pub struct Secret(String);

impl Secret {
    /// The secret, for the one place that must show it.
    #[must_use]
    pub fn reveal(self) -> String {
        self.0
    }

    fn token(id: &KeyId, random: &[u8; 32]) -> Self {
        Self(format!(
            "{PREFIX}{}_{}",
            &id.as_str()[1..],
            URL_SAFE_NO_PAD.encode(random)
        ))
    }
}

/// What is stored of a token.
fn hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// The id that a token of the right form names.
fn named(token: &str) -> Option<KeyId> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_at_checked(ID_CHARS)?;
    let secret = secret.strip_prefix('_')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if secret.len() != SECRET_CHARS || !secret.bytes().all(plain) {
        return None;
    }
    format!("k{id}").parse().ok()
}

fn view(record: KeyRecord) -> Key {
    Key {
        id: record.id,
        name: record.name,
        scope: record.scope,
        created_at: record.created_at,
        expires_at: record.expires_at,
        revoked_at: record.revoked_at,
    }
}

/// API keys.
#[derive(Clone)]
pub struct Keys {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl Keys {
    /// The keys of a store. They need nothing else of the controller, so the first key can be made
    /// before there is one.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        Self {
            store,
            clock,
            random,
        }
    }

    fn good_now(&self, key: &KeyRecord) -> bool {
        key.revoked_at.is_none() && key.expires_at.is_none_or(|at| at > self.clock.now())
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// `unauthenticated` for every token that is not good now, whatever is wrong with it;
    /// `store_failed`.
    pub async fn authenticate(&self, token: &str) -> Result<Principal, Denial> {
        let refuse = || {
            Denial::new(
                DenialCode::Unauthenticated,
                "a valid API key is needed: Authorization: Bearer lzr_…",
            )
        };
        let id = named(token).ok_or_else(refuse)?;
        let key = self.store.key(&id).await?.ok_or_else(refuse)?;
        let same: bool = hash(token).ct_eq(&key.hash).into();
        if same && self.good_now(&key) {
            Ok(Principal {
                key: key.id,
                scope: key.scope,
            })
        } else {
            Err(refuse())
        }
    }

    /// Makes a key and shows its token, once. Asked again under the same idempotency key it makes
    /// none, and cannot show the token: only its hash is kept. Needs `admin`.
    ///
    /// # Errors
    /// `invalid_name`, `invalid_duration`, `idempotency_mismatch`, `already_done`,
    /// `scope_too_narrow`, `store_failed`.
    pub async fn create(
        &self,
        by: &Principal,
        once: Option<IdempotencyKey>,
        request: CreateKey,
    ) -> Result<NewKey, Denial> {
        by.require(Scope::Admin)?;
        let asked = match once {
            None => None,
            Some(name) => Some(Asked {
                by: by.key.clone(),
                name,
                digest: digest(&request)?,
            }),
        };
        let name = request.name.unwrap_or_default();
        if name.chars().count() > NAME_CHARS || name.chars().any(char::is_control) {
            let why = format!(
                "a key's name has at most {NAME_CHARS} characters and no control characters"
            );
            return Err(Denial::new(DenialCode::InvalidName, why).at("name"));
        }
        let now = self.clock.now();
        let expires_at = match request.expires {
            None => None,
            Some(span) => Some(now.checked_add(span.duration()).map_err(|_| {
                Denial::new(DenialCode::InvalidDuration, "a key cannot live that long")
                    .at("expires")
            })?),
        };
        let id = KeyId::make(now, self.random.bits());
        let mut random = [0; 32];
        self.random.fill(&mut random);
        let token = Secret::token(&id, &random).reveal();
        let record = KeyRecord {
            id,
            name,
            scope: request.scope,
            hash: hash(&token),
            created_at: now,
            expires_at,
            revoked_at: None,
        };
        match self.store.add_key(&record, asked.as_ref()).await? {
            Named::New => {}
            Named::Before(made) => {
                return Err(already_done(format!(
                    "key {made} was made under this idempotency key; its token was shown then and cannot be shown \
                     again: revoke it and create another, under another idempotency key"
                )));
            }
            Named::OtherRequest => return Err(other_request()),
        }
        tracing::info!(key = %record.id, scope = ?record.scope, by = %by.key, "API key made");
        Ok(NewKey {
            key: view(record),
            token,
        })
    }

    /// All keys, without their secrets. Needs `admin`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn list(&self, by: &Principal) -> Result<KeyList, Denial> {
        by.require(Scope::Admin)?;
        let keys = self.store.keys().await?;
        Ok(KeyList {
            keys: keys.into_iter().map(view).collect(),
        })
    }

    /// Ends a key at once. Idempotent; the first time counts. Needs `admin`.
    ///
    /// # Errors
    /// `key_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn revoke(&self, by: &Principal, id: &KeyId) -> Result<Key, Denial> {
        by.require(Scope::Admin)?;
        let revoked = self.store.revoke_key(id, self.clock.now()).await?;
        let key = revoked
            .ok_or_else(|| Denial::new(DenialCode::KeyNotFound, format!("there is no key {id}")))?;
        tracing::info!(key = %key.id, by = %by.key, "API key revoked");
        Ok(view(key))
    }

    /// Whether any key is good now. Without one nobody can do anything.
    ///
    /// # Errors
    /// `store_failed`.
    pub async fn any_active(&self) -> Result<bool, Denial> {
        Ok(self
            .store
            .keys()
            .await?
            .iter()
            .any(|key| self.good_now(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_names_its_key_and_only_in_its_exact_form() {
        let id = KeyId::make(jiff::Timestamp::UNIX_EPOCH, 7);
        let token = Secret::token(&id, &[0xa5; 32]).reveal();
        assert_eq!(token.len(), PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS);
        assert_eq!(named(&token), Some(id));
        for wrong in [
            "",
            "lzr_",
            &token[1..],
            &token[..token.len() - 1],
            &format!("{token}x"),
            "CHANGE_ME",
        ] {
            assert_eq!(named(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_is_not(text in "(lzr_)?\\PC{0,70}") {
            let _ = named(&text);
        }
    }
}
