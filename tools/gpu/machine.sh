# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Sourced by validate.sh and stages.sh: what a machine with a GPU lacks, beside the build.

# FOLDER FOLDER_WITH_DEBS: unpacks the packages there, without installing them, for builds and
# programs of this shell.
unpack_packages() {
    local root=$1/root arch link to pc
    arch=$(gcc -dumpmachine)
    for deb in "$2"/*.deb; do dpkg -x "$deb" "$root"; done
    find "$root" -type l -lname '/*' | while read -r link; do    # to what was unpacked with them
        to=$root$(readlink "$link")
        [ ! -e "$to" ] || ln -sf "$to" "$link"
    done
    for pc in "$root/usr/lib/$arch/pkgconfig" "$root/usr/share/pkgconfig"; do
        [ -d "$pc" ] && sed -i "s|^\([a-z_]*\)=/usr|\1=$root/usr|" "$pc"/*.pc
        export PKG_CONFIG_PATH="$pc:${PKG_CONFIG_PATH:-}"
    done
    export PATH="$root/usr/bin:$PATH"
    export LD_LIBRARY_PATH="$root/usr/lib/$arch:${LD_LIBRARY_PATH:-}"
    export LIBRARY_PATH="$root/usr/lib/$arch:${LIBRARY_PATH:-}"
    export C_INCLUDE_PATH="$root/usr/include:$root/usr/include/$arch"
}

# FOLDER: NVIDIA's OpenCL library may be there without being registered: it is named in an .icd
# file of a folder of our own, together with the ones that are registered.
name_opencl() {
    local library
    mkdir -p "$1/vendors"
    cp /etc/OpenCL/vendors/*.icd "$1/vendors/" 2> /dev/null || true
    if ! grep -qs nvidia "$1"/vendors/*.icd; then
        library=$(find / -name 'libnvidia-opencl.so.1' -not -path '/proc/*' 2> /dev/null |
            head -1 || true)
        [ -z "$library" ] || echo "$library" > "$1/vendors/nvidia.icd"
    fi
    export OCL_ICD_VENDORS=$1/vendors/    # a folder, to every loader
    unset OCL_ICD_FILENAMES    # or the same would be there twice
}
