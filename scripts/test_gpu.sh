#!/usr/bin/env bash
# Runs the test suite on Mesa's software driver, to test the GPU code paths without a GPU.
#
#     apt-get install mesa-vulkan-drivers libvulkan1
#     scripts/test_gpu.sh [NAME...]          runs the tests whose names contain one of the NAMEs (default: the list below)
#
# Dependencies are built without optimization, except for those that compile kernels.
set -euo pipefail
cd "$(dirname "$0")/.."

export VK_DRIVER_FILES="${VK_DRIVER_FILES:-/usr/share/vulkan/icd.d/lvp_icd.x86_64.json}"
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/tmp}" # otherwise, the driver prints a warning at every start
[ -f "$VK_DRIVER_FILES" ] || { echo "no software driver: apt-get install mesa-vulkan-drivers libvulkan1" >&2; exit 1; }

levels=(--config 'profile.release.package."*".opt-level=0' --config profile.release.package.burn-flex.opt-level=0)
for used in burn-cubecl-fusion burn-fusion cubecl-common cubecl-core cubecl-ir cubecl-opt cubecl-runtime cubecl-wgpu \
  hashbrown naga serde_json wgpu-core wgpu-hal; do
  levels+=(--config "profile.release.package.$used.opt-level=1")
done
for used in rand_chacha ppv-lite86 strsim; do
  levels+=(--config "profile.release.package.$used.opt-level=3")
done

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  names=(gpu:: devices:: prefix:: contract:: generation:: cache:: cache_laws:: laws:: encoders:: lens:: embedded:: dump::)
fi
suite=(cargo test --release "${levels[@]}" --features wgpu --test suite --)
tests="$("${suite[@]}" --list)"
for name in "${names[@]}"; do
  grep -qF -- "$name" <<<"$tests" || { echo "no test has \`$name\` in its name" >&2; exit 1; }
done
HOOKLENS_DEVICE=wgpu HOOKLENS_TEST_CASES="${HOOKLENS_TEST_CASES:-3}" "${suite[@]}" --test-threads 2 "${names[@]}"
