// Runs before the first paint, so that a chosen theme does not flash. Everything else is a module and runs later.
try {
	const theme = localStorage.getItem('freeway.theme');
	if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
	// Storage may be switched off; the system's theme is fine then.
}
