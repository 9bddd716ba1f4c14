"""What fits the throttle into others' libraries; each module needs one of them, which an extra installs."""
