//! The provider files that are built into the program.

/// One built-in file.
pub struct Bundled {
    /// Its name, under which a file of the owner's folder replaces it.
    pub file: &'static str,
    pub text: &'static str,
}

macro_rules! bundled {
    ($($name:literal),* $(,)?) => {
        &[$(Bundled {
            file: concat!($name, ".json"),
            text: include_str!(concat!("../../providers/", $name, ".json")),
        }),*]
    };
}

/// All built-in files, by name.
pub static BUNDLED: &[Bundled] = bundled![];

/// The machine-readable contract of the format.
pub static SCHEMA: &str = include_str!("../../providers/_schema.json");
