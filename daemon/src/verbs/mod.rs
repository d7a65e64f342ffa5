//! One file a verb. Each takes a decoded request and the state it needs, and answers through the connection.
