//! Gives the shared object the name that programs load: `libcuda.so.1`.
fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
