//! Keys.
use crate::Principal;
use lazaret_api::public::{CreateKey, Key, KeyList, NewKey};
use lazaret_domain::{Denial, KeyId};

/// API keys.
#[derive(Clone)]
pub struct Keys {}

/// Secret.
pub struct Secret(String);

impl Keys {
    /// Whose token this is.
    ///
    /// # Errors
    /// `unauthenticated` for every token that is not good now, whatever is wrong with it.
    pub async fn authenticate(&self, token: &str) -> Result<Principal, Denial> {
        let _ = token;
        Err(crate::unbuilt())
    }

    /// Makes a key and shows its token, once. Needs `admin`.
    ///
    /// # Errors
    /// `invalid_name`, `scope_too_narrow`, `store_failed`.
    pub async fn create(&self, by: &Principal, request: CreateKey) -> Result<NewKey, Denial> {
        let _ = (by, request);
        Err(crate::unbuilt())
    }

    /// All keys, without their secrets. Needs `admin`.
    ///
    /// # Errors
    /// `scope_too_narrow`, `store_failed`.
    pub async fn list(&self, by: &Principal) -> Result<KeyList, Denial> {
        let _ = by;
        Err(crate::unbuilt())
    }

    /// Ends a key at once. Needs `admin`.
    ///
    /// # Errors
    /// `key_not_found`, `scope_too_narrow`, `store_failed`.
    pub async fn revoke(&self, by: &Principal, id: &KeyId) -> Result<Key, Denial> {
        let _ = (by, id);
        Err(crate::unbuilt())
    }

    /// Whether any key is good now. Without one nobody can do anything.
    ///
    /// # Errors
    /// `store_failed`.
    pub async fn any_active(&self) -> Result<bool, Denial> {
        Err(crate::unbuilt())
    }
}
