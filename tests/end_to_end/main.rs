//! The whole way of a request over real sockets, and the program as a user runs it.

mod cli;
mod golden;
mod serving;
mod site;
mod verifying;
