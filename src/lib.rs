//! temp
pub mod backend;
pub mod chat;
pub mod checkpoint;
pub mod gateway;
pub mod openai;
pub mod proof;
pub mod protocol;
pub mod spec;
