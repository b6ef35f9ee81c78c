//! With LibTorch built in, makes programs look for its libraries where the build found them, so that they need no
//! `LD_LIBRARY_PATH`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let windows = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "windows");
    if let (Ok(folder), false) = (std::env::var("DEP_TCH_LIBTORCH_LIB"), windows) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
