"""Integrations with other libraries; each module needs one of them, which an extra installs."""
