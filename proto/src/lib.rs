//! The API model: IDL, schema tables and the object engine
