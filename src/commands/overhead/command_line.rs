//! The command as a report may show it: without secrets.

/// Flags whose values are nobody's business.
const SECRETS: [&str; 2] = ["--serve-api-key", "--miner-key"];

/// The flag whose addresses may hold a password.
const ADDRESSES: &str = "--serve-url";

/// A command line that can be run again, but for its secrets.
pub(super) fn shown(arguments: impl Iterator<Item = String>) -> String {
    let mut words = Vec::new();
    let mut flag = String::new();
    for (at, argument) in arguments.enumerate() {
        let word = match argument.split_once('=') {
            // The program, wherever it lies.
            _ if at == 0 => argument.rsplit('/').next().unwrap_or_default().to_owned(),
            Some((name, value)) if argument.starts_with("--") => format!("{name}={}", value_of(name, value)),
            _ => value_of(&flag, &argument),
        };
        words.push(quoted(&word));
        flag = argument;
    }
    words.join(" ")
}

fn value_of(flag: &str, value: &str) -> String {
    if SECRETS.contains(&flag) {
        return "***".into();
    }
    if flag != ADDRESSES {
        return value.to_owned();
    }
    let addresses = value.split(',').map(|address| {
        let (address, query) = address.split_once('?').map_or((address, ""), |(address, _)| (address, "?***"));
        match (address.split_once("://"), address.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}{query}"),
            _ => format!("{address}{query}"),
        }
    });
    addresses.collect::<Vec<_>>().join(",")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+*".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown_and_the_rest_can_be_run_again() {
        let words = [
            "/usr/local/bin/engy-miner",
            "bench",
            "overhead",
            "--serve-api-key",
            "sk-1",
            "--serve-api-key=sk-2",
            "--miner-key",
            "mk-3",
            "--serve-url",
            "http://me:pass@word@gpu:30000,http://b:1/?api_key=k",
            "--serve-url=https://u:p@c",
            "--output",
            "it's here",
            "--prompts",
            "",
        ];
        assert_eq!(
            shown(words.into_iter().map(str::to_owned)),
            r"engy-miner bench overhead --serve-api-key *** --serve-api-key=*** --miner-key *** --serve-url 'http://***@gpu:30000,http://b:1/?***' --serve-url=https://***@c --output 'it'\''s here' --prompts ''"
        );
    }
}
