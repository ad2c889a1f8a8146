# Runs `farmem run` as an ordinary user before and after the administrator's command, in a mount namespace of its own. Nothing that the
# commands change is the machine's: /etc is a copy, /run is empty, and the device and the setting are files of this namespace.
# Arguments: the farmem command, an empty directory, a program that hands far memory to system calls, and one that forks.
set -eu
farmem=$1 dir=$2 kernel=$3 forks=$4
user="env -u XDG_RUNTIME_DIR TMPDIR=/tmp setpriv --reuid=65534 --regid=65534 --clear-groups"
cd /
cp -a /etc "$dir/etc"
mount --bind "$dir/etc" /etc
mount -t tmpfs none /run
mkdir -p /etc/udev/rules.d /etc/sysctl.d
rm -f /etc/udev/rules.d/60-farmem.rules /etc/sysctl.d/60-farmem.conf
mknod "$dir/userfaultfd" c 10 "$(awk '$2 == "userfaultfd" { print $1 }' /proc/misc)"
chmod 600 "$dir/userfaultfd"
mount --bind "$dir/userfaultfd" /dev/userfaultfd
echo 0 > "$dir/setting"
mount --bind "$dir/setting" /proc/sys/vm/unprivileged_userfaultfd

# What an ordinary user is told to have an administrator do; the administrator is root already.
refused() {
    if "$@" run --local 1MiB -- true 2> "$dir/said"; then echo "not refused: $*"; exit 1; fi
    grep -c 'no permission to serve page faults' "$dir/said" > /dev/null
    sed -n 's/.*: sudo //p' "$dir/said"
}

echo "without udev:"
without_udev=$(refused $user "$farmem")
sh -c "$without_udev" > /dev/null
cat "$dir/setting" /etc/sysctl.d/60-farmem.conf

mkdir /run/udev
echo "with udev:"
with_udev=$(refused $user "$farmem")
if $user unshare -Ur true 2> /dev/null; then
    [ "$(refused $user unshare -Ur "$farmem" | wc -l)" = 1 ]
fi
sh -c "$with_udev"
cat /etc/udev/rules.d/60-farmem.rules
stat -c '%a %u %g' /dev/userfaultfd
$user "$farmem" doctor | grep '^ok *userfaultfd'
$user "$farmem" run --local 1MiB --far 1GiB -- "$kernel" 2> "$dir/said"
$user "$farmem" run --local 1MiB --far 1GiB --json -- "$forks" 2> "$dir/said" | tail -n 1
tail -n 1 "$dir/said"
