//! One TLS implementation for the websocket legs and HTTP clients.

/// Makes ring the process's cryptography. Must run before the first connection; running again does nothing.
pub fn install() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
