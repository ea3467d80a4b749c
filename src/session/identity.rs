//! Who a worker is, over restarts.
//!
//! The network's control plane knows a worker by its id: a new id is a new worker that must be onboarded again, which
//! takes hours; but with an old id the capacity of the first onboarding stays on record. So the id is kept while name,
//! model and declared capacity stay the same, and replaced when one of them changes.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A worker's name and id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name, given by the operator or derived from host and model.
    pub worker_name: String,
    /// 32 hex digits.
    pub worker_id: String,
}

/// What a kept id stands for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    identity: Identity,
    model: String,
    max_inflight_total: usize,
}

/// Holds a worker's name for this process: two miners of one name on one machine would steal each other's legs.
#[derive(Debug)]
pub struct NameLock {
    _file: File,
}

/// Why an identity cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Another process has the name.
    #[error(
        "a miner named {name:?} already runs on this machine; give this one another --worker-name (lock file {})",
        path.display()
    )]
    Taken {
        /// The name.
        name: String,
        /// The lock.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot keep the worker's identity in {}: {source}; give --state-dir a folder that can be written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The name cannot be a file name.
    #[error("the worker name {0:?} must be 1 to 64 letters, digits, dots, dashes or underscores")]
    Name(String),
}

impl Identity {
    /// An identity that lives as long as this process.
    #[must_use]
    pub fn ephemeral(worker_name: impl Into<String>) -> Self {
        Self { worker_name: worker_name.into(), worker_id: new_id() }
    }

    /// The identity kept in `folder` under this name, or a new one where nothing is kept or the declaration changed.
    ///
    /// # Errors
    /// When another process holds the name, or the folder cannot be written.
    pub fn keep(
        folder: &Path,
        worker_name: &str,
        model: &str,
        max_inflight_total: usize,
    ) -> Result<(Self, NameLock), IdentityError> {
        check_name(worker_name)?;
        let path = folder.join(format!("{worker_name}.json"));
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| IdentityError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let lock = lock(folder, worker_name)?;
        let kept = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        if let Some(kept) = kept {
            let same = kept.model == model && kept.max_inflight_total == max_inflight_total;
            if same && kept.identity.worker_name == worker_name && is_id(&kept.identity.worker_id) {
                return Ok((kept.identity, lock));
            }
            tracing::info!(worker_name, "the declaration changed: the worker gets a new id and will be onboarded anew");
        }
        let kept = Kept { identity: Self::ephemeral(worker_name), model: model.into(), max_inflight_total };
        // Written beside and moved into place: a crash leaves the old identity or the new one, never half of one.
        let draft = folder.join(format!("{worker_name}.json.new"));
        let json = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&draft)?;
            file.write_all(&json)?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(failed(&path))?;
        Ok((kept.identity, lock))
    }
}

/// The name of a worker whose operator gives none: `ins-` and twelve hex digits of host, model and backend.
#[must_use]
pub fn default_name(host: &str, model: &str, backend: &str) -> String {
    let hash = Sha256::digest(format!("{host}|{model}|{backend}"));
    let hex: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("ins-{hex}")
}

fn lock(folder: &Path, name: &str) -> Result<NameLock, IdentityError> {
    let path = folder.join(format!("{name}.lock"));
    let failed = |source| IdentityError::Io { path: path.clone(), source };
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(NameLock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(IdentityError::Taken { name: name.into(), path }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn check_name(name: &str) -> Result<(), IdentityError> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if plain && (1..=64).contains(&name.len()) && !name.starts_with('.') {
        return Ok(());
    }
    Err(IdentityError::Name(name.into()))
}

fn new_id() -> String {
    Uuid::new_v4().simple().to_string()
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Field case FC-W09.
    #[test]
    fn the_id_is_kept_while_nothing_changed_and_replaced_when_the_declaration_did() {
        let dir = tempfile::tempdir().unwrap();
        let run = |name, total| Identity::keep(dir.path(), name, "qwen3.6-35b-a3b", total).unwrap().0.worker_id;
        let ids = [run("r7-g0", 24), run("r7-g0", 24), run("r7-g0", 16), run("r7-g1", 16)];
        assert_eq!(ids[0], ids[1]);
        assert_ne!(ids[1], ids[2]);
        assert!(!ids[..3].contains(&ids[3]));
        assert!(ids.iter().all(|id| is_id(id)));
    }

    #[test]
    fn a_name_is_held_by_one_process_and_a_damaged_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (first, lock) = Identity::keep(dir.path(), "a", "m", 8).unwrap();
        assert!(matches!(Identity::keep(dir.path(), "a", "m", 8), Err(IdentityError::Taken { .. })));
        drop(lock);
        fs::write(dir.path().join("a.json"), "{").unwrap();
        assert_ne!(Identity::keep(dir.path(), "a", "m", 8).unwrap().0, first);
    }

    #[test]
    fn names_are_plain() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "../x", "a/b", ".hidden", "a b"] {
            assert!(matches!(Identity::keep(dir.path(), name, "m", 8), Err(IdentityError::Name(_))), "{name:?}");
        }
        assert_eq!(default_name("rack7", "m", "candle").len(), 16);
    }
}
