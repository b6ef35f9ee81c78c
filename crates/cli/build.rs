//! Sets the run path of programs that are built with LibTorch to the folder where the build found LibTorch's libraries,
//! so that the programs don't need `LD_LIBRARY_PATH`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let windows = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "windows");
    if let (Ok(folder), false) = (std::env::var("DEP_TCH_LIBTORCH_LIB"), windows) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
