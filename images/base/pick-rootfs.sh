#!/bin/sh
# Usage: pick-rootfs.sh TARGET PACKAGE...
# Copies the files of installed packages into TARGET, without documentation and translations. The packages that a
# program does not need at run time (package manager, shell tools) stay behind: what is loaded into every node of a
# cluster should be small. A library that a program needs and that no named package brings is an error.
set -eu
target=$1
shift
mkdir -p "$target/usr/bin" "$target/usr/sbin" "$target/usr/lib" "$target/usr/lib64" \
    "$target/etc" "$target/proc" "$target/sys" "$target/dev" "$target/run" "$target/var/tmp" "$target/tmp"
for link in bin sbin lib lib64; do
    [ -e "$target/$link" ] || ln -s "usr/$link" "$target/$link"
done
chmod 1777 "$target/tmp" "$target/var/tmp"
for package in "$@"; do
    dpkg -L "$package"
done > /tmp/listed
sort -u /tmp/listed | while read -r path; do
    case $path in
        /usr/share/doc/*/copyright) ;;
        /usr/share/doc/*|/usr/share/man/*|/usr/share/locale/*|/usr/share/lintian/*|/usr/share/bug/*|/usr/share/doc-base/*) continue ;;
    esac
    if [ -L "$path" ] || [ -f "$path" ]; then
        printf '%s\n' "${path#/}"
    fi
done > /tmp/picked
tar --create --directory / --no-recursion --files-from /tmp/picked \
    | tar --extract --directory "$target" --keep-directory-symlink
for file in etc/ld.so.conf etc/ld.so.conf.d etc/ssl/certs etc/nsswitch.conf etc/localtime; do
    if [ -e "/$file" ]; then
        mkdir -p "$target/$(dirname "$file")"
        cp -a "/$file" "$target/$(dirname "$file")/"
    fi
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\nqueueworker:x:65532:65532:queueworker:/app:/bin/sh\n' > "$target/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\nqueueworker:x:65532:\n' > "$target/etc/group"
printf 'hosts: files dns\n' > "$target/etc/nsswitch.conf"
chroot "$target" /sbin/ldconfig
loader=$(find /lib64 /lib -maxdepth 1 -name 'ld-linux*.so.*' | head -n 1)
missing=$(find "$target/" -type f \( -name '*.so*' -o -perm /111 \) | while read -r file; do
    chroot "$target" "$loader" --list "${file#"$target"}" 2>/dev/null | grep 'not found' || true
done | sort -u)
if [ -n "$missing" ]; then
    printf 'libraries missing from %s:\n%s\n' "$target" "$missing" >&2
    exit 1
fi
