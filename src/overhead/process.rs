//! A process for each backend, and for the stand-in serve: what one takes is then its own, processor time and memory.
//!
//! A line of JSON in, a line of JSON out. A process ends when its standard input does, and at once when the one that measures does, however
//! that comes about: see [`die_with_parent`].

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, stdin, stdout};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Another process of this program that answers requests.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// A process that has nothing to do ends within milliseconds, but for freeing a large model's memory.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Why another process did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started.
    #[error("cannot start another process of this program for {name}: {source}")]
    Start {
        /// What it was to be.
        name: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It said why.
    #[error("{name}: {reason}")]
    Refused {
        /// What it is.
        name: &'static str,
        /// Its words.
        reason: String,
    },
    /// It has ended; why stands in its own words above.
    #[error("the process for {0} has ended; what it said stands above")]
    Gone(&'static str),
    /// It said what no such process says.
    #[error("the process for {name} does not answer as it should: {reason}")]
    Foreign {
        /// What it is.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// What a process answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply<A> {
    Ok(A),
    Error(String),
}

impl Process {
    /// Starts this program with these flags. Its log lines are this program's own, warnings and worse alone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn start(name: &'static str, flags: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<Self, ProcessError> {
        let failed = |source| ProcessError::Start { name, source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        if std::env::var_os("ENGY_LOG").is_none() {
            command.env("ENGY_LOG", "warn");
        }
        // An interrupt is for the one that measures: it then tells what it has.
        command.process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Gone(name));
        };
        Ok(Self { name, child, requests, answers: BufReader::new(answers).lines() })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// With its own words, or when it has ended.
    pub async fn ask<A: DeserializeOwned>(&mut self, request: &impl Serialize) -> Result<A, ProcessError> {
        let name = self.name;
        let foreign = |reason: String| ProcessError::Foreign { name, reason };
        let mut line = serde_json::to_vec(request).map_err(|e| foreign(e.to_string()))?;
        line.push(b'\n');
        let sent = async {
            self.requests.write_all(&line).await?;
            self.requests.flush().await?;
            self.answers.next_line().await
        };
        let Ok(Some(answer)) = sent.await else { return Err(ProcessError::Gone(name)) };
        match serde_json::from_str(&answer).map_err(|e| foreign(e.to_string()))? {
            Reply::Ok(answer) => Ok(answer),
            Reply::Error(reason) => Err(ProcessError::Refused { name, reason }),
        }
    }

    /// Lets it end, and waits a little until it has: one that is still at work is ended.
    pub async fn end(self) {
        let Self { mut child, requests, .. } = self;
        drop(requests);
        let _ = tokio::time::timeout(END_TIMEOUT, child.wait()).await;
    }
}

/// Has the system end this process when the one that started it ends, even where that is killed or this one is at work.
pub fn die_with_parent() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// The other end: answers standard input's requests on standard output, until there are no more.
///
/// # Errors
/// When standard input or output breaks. A request that cannot be read is answered, as an error.
pub async fn answer_requests<Q, A>(mut answer: impl AsyncFnMut(Q) -> Result<A, String>) -> std::io::Result<()>
where
    Q: DeserializeOwned,
    A: Serialize,
{
    let (mut requests, mut answers) = (BufReader::new(stdin()).lines(), stdout());
    while let Some(line) = requests.next_line().await? {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => match answer(request).await {
                Ok(answer) => Reply::Ok(answer),
                Err(reason) => Reply::Error(reason),
            },
            Err(error) => Reply::Error(error.to_string()),
        };
        let mut line = serde_json::to_vec(&reply).map_err(std::io::Error::other)?;
        line.push(b'\n');
        answers.write_all(&line).await?;
        answers.flush().await?;
    }
    Ok(())
}
