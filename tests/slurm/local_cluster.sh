# Starts a real Slurm cluster with one node and `slots` processors (default: all of the machine's), in a new folder,
# `work`. Source it as root on a machine with Debian's `slurm-wlm` and `munge`. When the sourcing script ends,
# everything that was started is stopped, and a replaced slurm.conf is restored. Exits with code 3 if Slurm does not
# start.
work="$(mktemp -d)"
chmod 755 "$work"
host="$(hostname -s)"
started=()

ready=""

end() {
  local code=$?
  for one in "${started[@]}"; do kill "$one" 2>/dev/null || true; done
  for kept in /etc/slurm/slurm.conf; do
    if [ -e "$work/kept.conf" ]; then mv "$work/kept.conf" "$kept"; else rm -f "$kept"; fi
  done
  wait
  rm -rf "$work"
  [ -n "$ready" ] || [ "$code" = 0 ] || code=3
  exit "$code"
}
trap end EXIT

mkdir -p /etc/slurm /run/munge "$work/state" "$work/spool"
[ ! -e /etc/slurm/slurm.conf ] || mv /etc/slurm/slurm.conf "$work/kept.conf"
chown munge:munge /run/munge
[ -e /etc/munge/munge.key ] || (umask 077 && head -c 1024 /dev/urandom >/etc/munge/munge.key && chown munge:munge /etc/munge/munge.key)
if ! munge -n >/dev/null 2>&1; then
  runuser -u munge -- munged --foreground >"$work/munged.log" 2>&1 &
  started+=($!)
fi

# One node. Jobs that exit with code 75 are requeued immediately.
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=hooklens
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
RequeueExit=75
SchedulerParameters=requeue_delay=1,sched_interval=1,batch_sched_delay=0
MailProg=/bin/true
ReturnToService=2
NodeName=$host CPUs=${slots:-$(nproc)} State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
sleep 1
slurmctld -D >"$work/slurmctld.out" 2>&1 &
started+=($!)
slurmd -D >"$work/slurmd.out" 2>&1 &
started+=($!)
for _ in $(seq 60); do
  if sinfo -h -o %T 2>/dev/null | grep -q idle; then break; fi
  sleep 1
done
sinfo -h -o %T | grep -q idle || { tail -20 "$work"/slurm*.log "$work"/*.out; exit 1; }
ready=yes

