//! The port to the store.

/// Where everything that must outlive the controller is kept.
pub trait Store: Send + Sync + 'static {}
