//! The name that a commitment gives to a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::CheckpointError;

/// The root of a model folder: `config.json`'s bytes, then name and size of each `*.safetensors`, top folder only.
pub(super) fn of_folder(folder: &Path) -> Result<String, CheckpointError> {
    let unreadable = |source| CheckpointError::Read { path: folder.into(), source };
    let config = match fs::read(folder.join("config.json")) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => b"{}".to_vec(),
        Err(source) => return Err(unreadable(source)),
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    of_files(&config, files.iter().map(PathBuf::as_path))
}

/// SHA-256 over `config`, then file name and decimal size of each file, as 64 hex digits.
pub(super) fn of_files<'a>(
    config: &[u8],
    files: impl IntoIterator<Item = &'a Path>,
) -> Result<String, CheckpointError> {
    let mut hash = Sha256::new();
    hash.update(config);
    for path in files {
        let size = fs::metadata(path).map_err(|source| CheckpointError::Read { path: path.into(), source })?.len();
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(size.to_string());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected values: `printf ... | sha256sum` over the bytes that the rule names.
    #[test]
    fn hashes_config_then_names_and_sizes_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), r#"{"a": 1}"#).unwrap();
        fs::write(dir.path().join("b.safetensors"), vec![0; 12]).unwrap();
        fs::write(dir.path().join("a.safetensors"), vec![0; 345]).unwrap();
        fs::write(dir.path().join("tokenizer.json"), "not hashed").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/c.safetensors"), "not hashed").unwrap();
        // sha256 of `{"a": 1}a.safetensors345b.safetensors12`
        assert_eq!(of_folder(dir.path()).unwrap(), "299f9658522df15001df9e01ed609c01921ccc1e3bbf10c487d937e23e3f223e");
        fs::remove_file(dir.path().join("config.json")).unwrap();
        // sha256 of `{}a.safetensors345b.safetensors12`
        assert_eq!(of_folder(dir.path()).unwrap(), "490ae0c7483820e994147669708ad0e0b10a9ce40b78c68c4f43b8bc3ae1cdcc");
    }
}
