//! The frequency of the host's time stamp counter, which an emulated guest counts by too.
//!
//! In the order of trust: what a hypervisor above us says, what the CPU says, what the kernel shows
//! where the CPU's clock does not change, the CPU's base frequency.

/// In kilohertz, if it can be known.
pub(super) fn host_khz() -> Option<u64> {
    let fixed_clock = !std::path::Path::new("/sys/devices/system/cpu/cpu0/cpufreq").exists();
    let shown = || {
        std::fs::read_to_string("/proc/cpuinfo")
            .ok()
            .as_deref()
            .and_then(shown_khz)
    };
    named_by_hypervisor()
        .or_else(named_by_cpu)
        .or_else(|| fixed_clock.then(shown).flatten())
        .or_else(base_of_cpu)
        .or_else(shown)
        .filter(|khz| (100_000..10_000_000).contains(khz))
}

#[cfg(target_arch = "x86_64")]
fn named_by_hypervisor() -> Option<u64> {
    raw_cpuid::CpuId::new()
        .get_hypervisor_info()?
        .tsc_frequency()
        .filter(|khz| *khz > 0)
        .map(u64::from)
}

#[cfg(target_arch = "x86_64")]
fn named_by_cpu() -> Option<u64> {
    raw_cpuid::CpuId::new()
        .get_tsc_info()?
        .tsc_frequency()
        .map(|hz| hz / 1000)
        .filter(|khz| *khz > 0)
}

#[cfg(target_arch = "x86_64")]
fn base_of_cpu() -> Option<u64> {
    let info = raw_cpuid::CpuId::new().get_processor_frequency_info()?;
    Some(u64::from(info.processor_base_frequency()) * 1000).filter(|khz| *khz > 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn named_by_hypervisor() -> Option<u64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn named_by_cpu() -> Option<u64> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn base_of_cpu() -> Option<u64> {
    None
}

/// `cpu MHz : 2299.998` is 2,299,998 kHz.
fn shown_khz(cpuinfo: &str) -> Option<u64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    let (whole, part) = line.split_once(':')?.1.trim().split_once('.')?;
    let part = format!("{part:0<3}");
    Some(whole.parse::<u64>().ok()? * 1000 + part.get(..3)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_is_read_to_the_kilohertz() {
        assert_eq!(
            shown_khz("model name\t: X\ncpu MHz\t\t: 2299.998\n"),
            Some(2_299_998)
        );
        assert_eq!(shown_khz("cpu MHz : 2300.0\n"), Some(2_300_000));
        assert_eq!(shown_khz("nothing"), None);
    }
}
