//! millpond-sqltest
