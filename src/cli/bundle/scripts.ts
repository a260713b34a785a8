/** Owns the shell scripts of a bundle: the one that starts kvfold, and the one that unpacks an archive. POSIX sh, nothing else. */

/**
 * Starts the Node beside it, from any folder and through links. Takes the machine's C++ library where that is new enough (6.0.`minor`), as
 * a driver of the machine may need just that one, else ours. Needs no program but the shell (and readlink, where called through a link).
 */
export const launcher = (main: string, triplet: string, minor: number): string => `#!/bin/sh
# Runs kvfold on the Node beside this script.
self=$0
case $self in */*) ;; *) self=./$self ;; esac
while [ -L "$self" ]; do
  target=$(readlink "$self") || exit 1
  case $target in
    /*) self=$target ;;
    *) self=\${self%/*}/$target ;;
  esac
done
here=$(CDPATH= cd -- "\${self%/*}/" && pwd -P) || exit 1

# The machine's C++ library if it is new enough, else ours.
lib=$here/lib
for file in /usr/lib/${triplet}/libstdc++.so.6.0.* /lib/${triplet}/libstdc++.so.6.0.* /usr/lib64/libstdc++.so.6.0.*; do
  minor=\${file##*.so.6.0.}
  case $minor in
    *[!0-9]*) ;;
    *) if [ "$minor" -ge ${minor} ]; then lib=; fi ;;
  esac
done
if [ -n "$lib" ]; then
  LD_LIBRARY_PATH=$lib\${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi
# Node asks where home is, and stops where nothing says so.
if [ -z "\${HOME-}" ] && [ ! -e /etc/passwd ]; then
  HOME=/
  export HOME
fi

exec "$here/node" "$here/${main}" "$@"
`

/** Checks the parts of an archive, joins and unpacks them, and checks what came out. */
export const unpacker = (name: string, sums: string, inside: string): string => `#!/bin/sh
# Checks, joins and unpacks the parts beside this script: sh unpack.sh [folder]
set -eu
fail() {
  echo "unpack: $1" >&2
  exit 1
}
for tool in sha256sum tar gzip; do
  command -v "$tool" >/dev/null || fail "$tool was not found"
done
case $0 in */*) here=\${0%/*}/ ;; *) here=./ ;; esac
mkdir -p -- "\${1:-.}"
to=$(CDPATH= cd -- "\${1:-.}/" && pwd -P)
[ ! -e "$to/${name}" ] || fail "$to/${name} is there already"
CDPATH= cd -- "$here"
sha256sum --quiet -c ${sums} || fail 'a part is missing or damaged; copy it again'
while read -r _ part; do cat "$part"; done <${sums} | gzip -dc | tar -xf - -C "$to" || fail "cannot unpack to $to"
cd -- "$to/${name}"
sha256sum --quiet -c ${inside} || fail 'some files did not come out right; is the disk full?'
echo "unpacked and checked: $to/${name}"
`
